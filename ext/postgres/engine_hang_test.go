//go:build unix

package postgres_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
)

// The worker drains for less than the default of 20 s, so that the test is short: granted
// is so much less than what Kubernetes grants.
const (
	drain   = time.Second
	granted = 30*time.Second - (20*time.Second - drain)
)

// A server that hangs, with connections that stay open, keeps no worker, relay, job or
// handler from ending in the time that they have.
func TestEngine_FrozenServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	quiet := slog.New(slog.DiscardHandler)
	openEngine := func() *postgres.Engine {
		e, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
		require.NoError(t, err)
		return e
	}
	setup := openEngine()
	for i := range 500 {
		require.NoError(t, delivery.NewQueue[int](setup, "orders").Put(t.Context(), i))
		require.NoError(t, delivery.NewQueue[int](setup, "outbox").Put(t.Context(), i))
		require.NoError(t, delivery.NewQueue[int](setup, "old").Put(t.Context(), i))
	}
	require.NoError(t, setup.Close())

	ctx, end := context.WithCancel(t.Context())
	defer end()
	var frozen time.Time
	type took struct {
		what string
		time time.Duration
	}
	var started, all sync.WaitGroup
	results := make(chan took, 20)
	run := func(what string, f func(e *postgres.Engine, started func())) {
		e := openEngine()
		started.Add(1)
		all.Go(func() { // ends with ctx
			f(e, sync.OnceFunc(started.Done))
			results <- took{what, time.Since(frozen)}
			_ = e.Close()
			results <- took{"Close behind " + what, time.Since(frozen)}
		})
	}
	run("a worker", func(e *postgres.Engine, started func()) {
		call := func(ctx context.Context, i int) (int, error) {
			started()
			select {
			case <-time.After(200 * time.Millisecond):
				return i, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		orders := delivery.NewQueue[int](e, "orders", delivery.WithLogger(quiet))
		op := asyncop.UnorderedWait(asyncop.Blocking(call), 10*time.Second, 20, asyncop.WithLogger(quiet), asyncop.WithFailureSink(orders.TakeFailure))
		_, _ = delivery.Run(ctx, orders, op, delivery.NewQueue[int](e, "receipts", delivery.WithLogger(quiet)), delivery.WithLogger(quiet), delivery.WithDrain(drain))
	})
	run("a relay", func(e *postgres.Engine, started func()) {
		_ = outbox.Relay(ctx, e, e.Locks(), outbox.Config{Queue: "outbox", Logger: quiet, Batch: 1, Publish: func(context.Context, []store.Message) error {
			started()
			return nil
		}})
	})
	run("a job", func(e *postgres.Engine, started func()) {
		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		if err != nil {
			return
		}
		job, err := j.Start(ctx, jobs.Spec{Do: store.Merge, Queue: "old", To: "new", Rate: 2, By: "ann", Why: "test"})
		if err != nil {
			return
		}
		_, _ = j.Run(ctx, job.ID, func(jobs.Job) { started() })
	})
	handler := openEngine()
	in := delivery.NewQueue[int](handler, "in")
	put := func(i int) error { // as an HTTP handler
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return in.Put(ctx, i)
	}
	require.NoError(t, put(1))
	started.Wait()

	server.Freeze()
	frozen = time.Now()
	var puts sync.WaitGroup
	for i := range 10 {
		puts.Go(func() {
			if put(i) == nil {
				t.Error("a handler was told that its message is safe")
			}
			results <- took{"a handler", time.Since(frozen)}
		})
	}
	end()
	puts.Wait()
	_ = handler.Close()
	all.Wait()
	close(results)
	for r := range results {
		t.Log(r.what, r.time.Round(100*time.Millisecond))
		if r.time > granted {
			t.Errorf("%s took %v", r.what, r.time)
		}
	}
}
