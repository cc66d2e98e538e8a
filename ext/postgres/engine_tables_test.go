//go:build unix

package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
)

// A worker whose tables nobody has made ends at once with an error that says so, also if it is stopped at the same time.
func TestAWorkerWithoutTables(t *testing.T) {
	queues := postgres.New(connect(t, places(t)(t)))
	defer func() { require.NoError(t, queues.Close()) }()
	for name, stopped := range map[string]bool{"running": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			quiet := slog.New(slog.DiscardHandler)
			s := stopping{queues, func() {
				if stopped {
					cancel()
				}
			}}
			source := delivery.NewQueue[int](s, "work", delivery.WithLogger(quiet))
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, n int) (int, error) { return n, nil }), time.Minute, 1,
				asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
			_, err := delivery.Run(ctx, source, op, delivery.NewQueue[int](s, "done"), delivery.WithLogger(quiet))
			require.ErrorContains(t, err, "the source has failed for good")
			require.ErrorContains(t, err, "postgres.Migrate")
			require.Equal(t, stopped, ctx.Err() != nil)
		})
	}
}

// stopping is a store during whose first Take the worker is stopped.
type stopping struct {
	*postgres.Engine
	stop func()
}

func (s stopping) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	s.stop()
	return s.Engine.Take(ctx, queue, limit, lease)
}
