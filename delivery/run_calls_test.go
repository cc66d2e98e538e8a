package delivery_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/message"
)

// The caller of Run closes the engine and the clients that calls use, so Run returns
// after its calls, or names the running ones.
func TestRun_ReturnsAfterItsCalls(t *testing.T) {
	for name, c := range map[string]struct {
		needs   time.Duration // of the call, after the end of its context
		batched bool
		running bool // when Run returns
	}{
		"at once":               {},
		"in time":               {needs: 2 * time.Second},
		"too late":              {needs: time.Minute, running: true},
		"a batch in time":       {needs: 2 * time.Second, batched: true},
		"a batch, but too late": {needs: time.Minute, batched: true, running: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running atomic.Int64
				causes := make(chan error, 1)
				call := func(ctx context.Context) error {
					running.Add(1)
					defer running.Add(-1)
					<-ctx.Done()
					causes <- context.Cause(ctx)
					time.Sleep(c.needs)
					return ctx.Err()
				}
				f := asyncop.Blocking(func(ctx context.Context, _ int) (string, error) { return "", call(ctx) })
				if c.batched {
					f = asyncop.Batched(func(ctx context.Context, _ []int) ([]asyncop.Result[string], error) { return nil, call(ctx) }, 10, 0)
				}
				op := asyncop.UnorderedWait(f, time.Hour, 10, asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
				ctx, stop := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, stop)
				_, err := delivery.Run(ctx, newList(1, true), op, &collected{}, delivery.WithDrain(5*time.Second), silently)
				if c.running {
					require.ErrorIs(t, err, delivery.ErrCallsRun)
					require.EqualValues(t, 1, running.Load())
				} else {
					require.NoError(t, err)
					require.Zero(t, running.Load())
				}
				if c.running && !c.batched {
					require.ErrorContains(t, err, `: 1, for messages such as ["0"]`)
				}
				cause := <-causes
				require.ErrorIs(t, cause, asyncop.ErrStopped)
				require.NotErrorIs(t, cause, context.DeadlineExceeded)
				time.Sleep(time.Minute) // the call ends before the test does
			})
		})
	}
}

// A call whose own time has run out may run on when all messages are settled.
func TestRun_ReturnsAfterCallsThatTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		cause := make(chan error, 1)
		f := asyncop.Blocking(func(ctx context.Context, _ int) (string, error) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			time.Sleep(2 * time.Second)
			return "", errors.New("late")
		})
		op := asyncop.UnorderedWait(f, time.Second, 10, asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
		summary, err := delivery.Run(t.Context(), newList(1, false), op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 1, summary.HandedOver)
		require.Zero(t, running.Load())
		is := <-cause
		require.ErrorIs(t, is, context.DeadlineExceeded)
		require.NotErrorIs(t, is, asyncop.ErrStopped)
		require.NotErrorIs(t, is, message.ErrPurged)
	})
}
