package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqlitestore"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type job struct {
	Picture string `json:"picture"`
}

// Idempotent says that a job may run twice: its result is the same.
func (job) Idempotent() bool { return true }

var errUnavailable = errors.New("unavailable")

// notAPicture is the reason of jobs that will never succeed.
var notAPicture = predicates.NewRejection("NOT_A_PICTURE")

// convert is unavailable at the first attempt for b, refuses c, and loses its connection for d.
func convert(ctx context.Context, j job) (string, error) {
	switch {
	case j.Picture == "b" && asyncop.AttemptFromContext(ctx) == 1:
		return "", errUnavailable
	case j.Picture == "c":
		return "", predicates.WithReason(errors.New("no header"), notAPicture)
	case j.Picture == "d":
		return "", io.EOF
	}
	return j.Picture + ".png", nil
}

func work(ctx context.Context, path string) error {
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		return err
	}
	s := sqlitestore.New(db)
	defer s.Close()
	l, err := ladder.New(ladder.Config[job]{
		Store: s, Codec: codec.JSON[job](), DeadLetters: "dead",
		Layers: []ladder.Layer{
			{Queue: "jobs 1m", Delay: time.Minute, Jitter: 0.2},
			{Queue: "jobs 1h", Delay: time.Hour, Rate: 10},
		},
	})
	if err != nil {
		return err
	}
	jobs := store.NewSource(s, "jobs", "dead", codec.JSON[job]())
	results := store.NewSink(s, "results", codec.JSON[string]())
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(convert), 10*time.Second, 100,
		strategies.FixedDelay[string](3, 100*time.Millisecond).RetryIfException(predicates.ErrorIs(errUnavailable)),
		asyncop.WithFailureSink(l.Take))
	summary, err := delivery.Run(ctx, l.Source(jobs), op, results)
	slog.Info("the worker has ended", "summary", summary)
	return err
}

func Example_choosing() {
	dir, err := os.MkdirTemp("", "jobs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "jobs.db")
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	// Another process fills the queue, and looks at the results.
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	s := sqlitestore.New(db)
	defer func() { _ = s.Close() }()
	err = sqlitestore.Migrate(ctx, db)
	for _, picture := range []string{"a", "b", "c", "d"} {
		m := delivery.New(job{picture}, &delivery.Meta{ID: picture}, nil)
		err = errors.Join(err, store.NewSink(s, "jobs", codec.JSON[job]()).Put(ctx, []delivery.Message[job]{m}))
	}
	fmt.Println(err)
	list := func(queue string) []store.Entry {
		entries, err := s.List(context.Background(), queue, store.Filter{}, store.Page{Max: 10})
		if err != nil {
			fmt.Println(err)
		}
		return entries
	}
	go func() {
		defer stop()
		for ctx.Err() == nil && len(list("results"))+len(list("jobs 1m"))+len(list("dead")) < 4 {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	fmt.Println(work(ctx, path))
	for _, e := range list("results") {
		fmt.Println("result:", string(e.Payload))
	}
	for _, queue := range []string{"jobs 1m", "dead"} {
		for _, e := range list(queue) {
			fmt.Printf("%s: %s %s\n", queue, e.Meta.ID, e.Meta.LastError)
		}
	}
	// Output:
	// <nil>
	// <nil>
	// result: "a.png"
	// result: "b.png"
	// jobs 1m: d EOF
	// dead: c NOT_A_PICTURE: no header
}
