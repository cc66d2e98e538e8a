package delivery_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// countsCalls is an engine that counts its calls.
type countsCalls struct {
	*memory.Engine
	takes, updates, reads atomic.Int64
}

func (e *countsCalls) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	e.takes.Add(1)
	return e.Engine.Take(ctx, queue, limit, lease)
}

func (e *countsCalls) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	e.updates.Add(1)
	return e.Engine.Update(ctx, f)
}

func (e *countsCalls) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	e.reads.Add(1)
	return e.Engine.Records(ctx, kind, after, limit)
}

// A test may let days pass: an idle worker reports itself every 20 s. Every five minutes
// it writes its history, and asks each of its three queues twice, since it looks for
// other versions' layers. It does not poll.
func TestRun_IdleForDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 80 * time.Hour
		e := &countsCalls{Engine: memory.Open()}
		orders := delivery.NewQueue[int](e, "orders", delivery.RetryAfter(time.Minute, time.Hour))
		receipts := delivery.NewQueue[int](e, "receipts")
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, n int) (int, error) { return n, nil }), time.Minute, 10,
			asyncop.WithFailureSink(orders.TakeFailure))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, orders, op, receipts)
			ended <- err
		}()
		time.Sleep(time.Minute)
		takes, updates, reads := e.takes.Load(), e.updates.Load(), e.reads.Load()
		time.Sleep(idle)
		synctest.Wait()
		require.LessOrEqual(t, e.takes.Load()-takes, int64(2*3*(idle/(5*time.Minute))))
		require.LessOrEqual(t, e.updates.Load()-updates, int64(idle/(20*time.Second)+idle/(5*time.Minute)+idle/time.Hour))
		require.Zero(t, e.reads.Load()-reads)
		cancel()
		require.NoError(t, <-ended)
	})
}
