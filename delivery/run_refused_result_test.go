package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// lookUp is an order whose call may happen twice.
type lookUp struct{ ID string }

func (lookUp) Idempotent() bool { return true }

// rejectedByASink runs a worker whose calls succeed and whose sink never takes a result.
// It returns the dead letter.
func rejectedByASink[T any](t *testing.T, v T, sink delivery.Sink[string]) store.Entry {
	t.Helper()
	engine := memory.Open()
	orders := delivery.NewQueue[T](engine, "orders", noLog)
	require.NoError(t, orders.Put(t.Context(), v, delivery.ID("a")))
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(time.Minute, stop)
	calls := 0
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, T) (string, error) {
		calls++
		return "a receipt", nil
	}), time.Minute, 10, asyncop.WithFailureSink(orders.TakeFailure))
	_, err := delivery.Run(ctx, orders, op, sink, silently)
	require.NoError(t, err)
	require.Equal(t, 1, calls)
	dead := entriesOf(t, engine, orders.DeadLetters())
	require.Len(t, dead, 1)
	require.Contains(t, dead[0].Meta.LastError, "too large")
	return dead[0]
}

// A call has succeeded, and the sink never takes its result. A merge would make the call
// again, so the dead letter is unsafe to repeat unless the call is idempotent.
func TestRun_SinkRefusesTheResultOfACallThatSucceeded(t *testing.T) {
	tooLarge := fmt.Errorf("%w: too large", message.ErrRefused)
	for name, sink := range map[string]delivery.Sink[string]{
		"an error of the sink": sinkFunc(func(context.Context, []message.Message[string]) error { return tooLarge }),
		"the sink rejects it": sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			for _, m := range ms {
				m.Reject(tooLarge)
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				letter := rejectedByASink(t, charged{7}, sink)
				require.Equal(t, store.UnsafeToRepeat, letter.Cause)
				require.True(t, letter.Meta.UnsafeToRepeat)
				require.Equal(t, store.RepeatInDoubt, letter.Repetition(time.Now()))
			})
			synctest.Test(t, func(t *testing.T) {
				letter := rejectedByASink(t, lookUp{"7"}, sink)
				require.Equal(t, store.Refused, letter.Cause)
				require.False(t, letter.Meta.UnsafeToRepeat)
				require.Equal(t, store.RepeatPointless, letter.Repetition(time.Now()))
			})
		})
	}
}

// brokenLookUp panics when it is asked whether its call is idempotent.
type brokenLookUp struct{ ID string }

func (brokenLookUp) Idempotent() bool { panic("broken") }

// A panic of Idempotent after a call that succeeded does not end the run. The call counts
// as not idempotent.
func TestRun_IdempotentPanicsAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tooLarge := fmt.Errorf("%w: too large", message.ErrRefused)
		letter := rejectedByASink(t, brokenLookUp{"7"}, sinkFunc(func(context.Context, []message.Message[string]) error { return tooLarge }))
		require.True(t, letter.Meta.UnsafeToRepeat)
		require.Equal(t, store.RepeatInDoubt, letter.Repetition(time.Now()))
	})
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		orders := delivery.NewQueue[brokenLookUp](engine, "orders", noLog)
		results := delivery.NewQueue[string](engine, "results", noLog)
		for i := range 3 {
			require.NoError(t, orders.Put(t.Context(), brokenLookUp{fmt.Sprint(i)}))
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, o brokenLookUp) (string, error) { return o.ID, nil }),
			time.Minute, 10, asyncop.WithFailureSink(orders.TakeFailure))
		_, err := delivery.Run(ctx, orders, op, results, silently)
		require.NoError(t, err)
		require.Len(t, entriesOf(t, engine, "results"), 3)
		require.Empty(t, entriesOf(t, engine, "orders"))
		require.Empty(t, entriesOf(t, engine, orders.DeadLetters()))
	})
}
