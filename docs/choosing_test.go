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
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type job struct {
	Picture string `json:"picture"`
}

// Idempotent reports that a job may run twice, because its result is the same.
func (job) Idempotent() bool { return true }

var errUnavailable = errors.New("unavailable")

// notAPicture is the reason of jobs that will never succeed.
var notAPicture = predicates.NewRejection("NOT_A_PICTURE")

// convert is unavailable at the first attempt for b, refuses c, and loses its connection
// for d.
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
	engine, err := sqlite.Open(ctx, path) // or postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer engine.Close()
	jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour))
	results := delivery.NewQueue[string](engine, "results")
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(convert), 10*time.Second, 100,
		strategies.FixedDelay[string](3, 100*time.Millisecond).RetryIfException(predicates.ErrorIs(errUnavailable)),
		asyncop.WithFailureSink(jobs.TakeFailure))
	summary, err := delivery.Run(ctx, jobs, op, results)
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
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }()
	jobs := delivery.NewQueue[job](s, "jobs")
	for _, picture := range []string{"a", "b", "c", "d"} {
		err = errors.Join(err, jobs.Put(ctx, job{picture}, delivery.ID(picture)))
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
		for ctx.Err() == nil && len(list("results"))+len(list("jobs-retry-1"))+len(list("jobs-dead")) < 4 {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	fmt.Println(work(ctx, path))
	for _, e := range list("results") {
		fmt.Println("result:", string(e.Payload))
	}
	for _, queue := range []string{"jobs-retry-1", "jobs-dead"} {
		for _, e := range list(queue) {
			fmt.Printf("%s: %s %s\n", queue, e.Meta.ID, e.Meta.LastError)
		}
	}
	// Output:
	// <nil>
	// <nil>
	// result: "a.png"
	// result: "b.png"
	// jobs-retry-1: d EOF
	// jobs-dead: c NOT_A_PICTURE: no header
}
