package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

// PostgresVariable names the environment variable with the URL of a PostgreSQL server for
// W13, which creates its own databases. Without it W13 is skipped.
const PostgresVariable = "WEIR_BENCH_POSTGRES"

// w13 measures jobs in PostgreSQL: insert, work by an empty function, complete.
func w13(c Config) []Group {
	if os.Getenv(PostgresVariable) == "" {
		return nil
	}
	return []Group{{
		Workload: "W13", Variant: "store=postgres", Elems: c.elems(50_000, 1_000),
		Title: "insert jobs, a thousand a call, and work each with a function that does nothing",
		Rows: []Row{
			{Impl: "weir", Kind: Weir, Run: workByWeir},
			{Impl: "river", Kind: Peer, Run: workByRiver},
		},
		Aims: []Aim{{Impl: "weir", Against: BestPeer, Max: 1}},
	}}
}

var databases atomic.Int64

func database(ctx context.Context) (pool *pgxpool.Pool, end func() error, err error) {
	url := os.Getenv(PostgresVariable)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	name := fmt.Sprintf("weir_bench_%d_%d", os.Getpid(), databases.Add(1))
	admin := func(statement string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statement)
		return errors.Join(err, conn.Close(ctx))
	}
	if err := admin("CREATE DATABASE " + name); err != nil {
		return nil, nil, err
	}
	config.ConnConfig.Database = name
	config.MaxConns = 20
	pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	return pool, func() error {
		pool.Close()
		return admin("DROP DATABASE " + name)
	}, nil
}

var payload = []byte(strings.Repeat("x", 256))

// putAll puts n messages into the queue "in", a thousand per call.
func putAll(ctx context.Context, s store.Store, n int) error {
	for i := 0; i < n; i += 1000 {
		var ms []store.Message
		for j := i; j < min(n, i+1000); j++ {
			at := message.Origin{Source: "orders", Partition: "0", Position: strconv.Itoa(j)}
			ms = append(ms, store.Message{Meta: message.Meta{ID: at.ID(), Origin: at}, Payload: payload})
		}
		if err := s.Put(ctx, "in", ms...); err != nil {
			return err
		}
	}
	return nil
}

type counted struct{ n int }

func (c *counted) PutAll(_ context.Context, ms []message.Message[[]byte]) error {
	c.n += len(ms)
	return nil
}

func workByWeir(m *Meter, n int) error {
	ctx := context.Background()
	pool, end, err := database(ctx)
	if err != nil {
		return err
	}
	if err := postgres.New(pool).Migrate(ctx); err != nil {
		return err
	}
	s := postgres.New(pool)
	var worked counted
	m.Start()
	put := make(chan error, 1)
	go func() { put <- putAll(ctx, s, n) }()
	if err := errors.Join(storebench.Work(ctx, s, "in", &worked, n), <-put); err != nil {
		return err
	}
	m.Stop()
	if worked.n != n {
		return fmt.Errorf("%d of %d messages were worked", worked.n, n)
	}
	return errors.Join(s.Close(), end())
}

type jobArgs struct {
	Payload []byte `json:"payload"`
}

func (jobArgs) Kind() string { return "nothing" }

type nothing struct {
	river.WorkerDefaults[jobArgs]
	left atomic.Int64
	done chan struct{}
}

func (w *nothing) Work(context.Context, *river.Job[jobArgs]) error {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

func workByRiver(m *Meter, n int) error {
	ctx := context.Background()
	pool, end, err := database(ctx)
	if err != nil {
		return err
	}
	driver := riverpgxv5.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	w := &nothing{done: make(chan struct{})}
	w.left.Store(int64(n))
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver, &river.Config{
		// The settings of River's own benchmark.
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2_000}},
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Workers: workers, Logger: quiet,
	})
	if err != nil {
		return err
	}
	m.Start()
	if err := client.Start(ctx); err != nil {
		return err
	}
	for i := 0; i < n; i += 1000 {
		var jobs []river.InsertManyParams
		for range min(n-i, 1000) {
			jobs = append(jobs, river.InsertManyParams{Args: jobArgs{payload}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	<-w.done
	if err := client.Stop(ctx); err != nil { // returns once all jobs are completed in the database
		return err
	}
	m.Stop()
	return end()
}
