package storebench

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Merged checks law D1: a message that arrives in an outbox with the id of a message
// being published stays.
func Merged(t *testing.T, s store.Inspector, locks lock.Locks) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	put := func(merges int) {
		require.NoError(t, s.Put(ctx, "outbox", store.Message{Meta: message.Meta{ID: "a", Merges: merges}}))
	}
	put(0)
	var merges []int
	err := outbox.Relay(ctx, s, locks, outbox.Config{
		Queue: "outbox", Logger: slog.New(slog.DiscardHandler),
		Publish: func(_ context.Context, ms []store.Message) error {
			for _, m := range ms {
				merges = append(merges, m.Meta.Merges)
				if len(merges) == 1 {
					put(1)
				} else {
					cancel()
				}
			}
			return nil
		},
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{0, 1}, merges)
}

// WithoutTables checks that a worker on an engine without tables ends at once with an
// error that names the remedy, even if it is stopped meanwhile.
func WithoutTables(t *testing.T, engine store.Store, how string) {
	t.Helper()
	for name, stopped := range map[string]bool{"running": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			quiet := slog.New(slog.DiscardHandler)
			s := engine
			if stopped {
				s = stopping{engine, cancel}
			}
			source := delivery.NewQueue[int](s, "work", delivery.WithLogger(quiet))
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, n int) (int, error) { return n, nil }), time.Minute, 1,
				asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
			_, err := delivery.Run(ctx, source, op, delivery.NewQueue[int](s, "done"), delivery.WithLogger(quiet))
			require.ErrorContains(t, err, "the source has failed for good")
			require.ErrorContains(t, err, how)
			require.Equal(t, stopped, ctx.Err() != nil)
		})
	}
}

// stopping is a store whose first Take stops the worker.
type stopping struct {
	store.Store
	stop func()
}

func (s stopping) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	s.stop()
	return s.Store.Take(ctx, queue, limit, lease)
}
