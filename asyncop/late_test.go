package asyncop_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/strategies"
)

// ---- Blocking calls inside a wrapper that are late: they are not made, and what the wrapper completes does not count. The
// element ends as it would have without.

// around is a wrapper with something to do before and after AsyncInvoke, on the loop.
type around struct {
	asyncop.AsyncFunction[string, string]
	before, after func()
	ctx           context.Context // of the last call
}

func (w *around) AsyncInvoke(ctx context.Context, in string, result asyncop.ResultFuture[string]) error {
	w.ctx = ctx
	w.before()
	defer w.after()
	return w.AsyncFunction.AsyncInvoke(ctx, in, result)
}

func (w *around) Unwrap() any { return w.AsyncFunction }

// lateCall is a function whose call is late because of before; the loop comes to it a millisecond later.
func lateCall(t *testing.T, before func()) function {
	t.Helper()
	return &around{
		AsyncFunction: asyncop.Blocking(func(context.Context, string) (string, error) {
			t.Error("the call was made")
			return "", nil
		}),
		before: before, after: func() { time.Sleep(time.Millisecond) },
	}
}

// endOf sends one element and returns the results and Err.
func endOf(op *asyncop.AsyncWaitOperator[string, string]) (got []any, err error) {
	op.In() <- "a"
	close(op.In())
	for v := range op.Out() {
		got = append(got, v)
	}
	return got, op.Wait()
}

func TestWrappedCallLateByCancel(t *testing.T) {
	for _, withSide := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			opts := options(asyncop.WithContext(ctx))
			var side *sideSink
			if withSide {
				side = newSideSink(false)
				opts = append(opts, asyncop.WithFailureSink(side.take))
			}
			op := asyncop.OrderedWait(lateCall(t, func() { cancel(errBroken) }), time.Minute, 5, opts...)
			_, err := endOf(op)
			require.ErrorIs(t, err, errBroken)
			require.EqualValues(t, 1, op.Stats().Abandoned)
			if withSide {
				require.True(t, side.got()[0].Abandoned)
			}
		})
	}
}

func TestWrappedCallLateByDeadline(t *testing.T) {
	for _, withHandler := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			late := lateCall(t, func() { time.Sleep(2 * time.Second) })
			defer func() { require.ErrorIs(t, late.(*around).ctx.Err(), context.DeadlineExceeded) }()
			fn := late
			if withHandler {
				fn = timeoutMethod(fn, func(context.Context, string) ([]string, error) { return []string{"handled"}, nil })
			}
			op := asyncop.OrderedWait(fn, time.Second, 5)
			got, err := endOf(op)
			require.EqualValues(t, 1, op.Stats().Timeouts)
			if withHandler {
				require.NoError(t, err)
				require.Equal(t, []any{"handled"}, got)
				return
			}
			var timeout *asyncop.TimeoutError
			require.ErrorAs(t, err, &timeout)
		})
	}
}

func TestWrappedCallLateByAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := lateCall(t, func() { time.Sleep(2 * time.Second) })
		op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 5, strategies.NoRetry[string](),
			asyncop.WithAttemptTimeout(time.Second))
		_, err := endOf(op)
		var timeout *asyncop.AttemptTimeoutError
		require.ErrorAs(t, err, &timeout)
		require.EqualValues(t, 1, op.Stats().AttemptTimeouts)
	})
}

// An error of the handler is what it fails with, also if it is the panic of another operator.
func TestTimeoutHandlerThatReturnsAPanicError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := &asyncop.PanicError{Value: "of another operator"}
		fn := timeoutMethod(newHand(t), func(context.Context, string) ([]string, error) { return nil, mine })
		_, err := endOf(asyncop.OrderedWait(fn, time.Second, 4))
		var failed *asyncop.ElementError
		require.ErrorAs(t, err, &failed)
		require.Same(t, mine, failed.Err)
	})
}

// Retries without a delay take no first attempt's turn as long as there are permits for both.
func TestFirstAttemptsBesideRetriesWithoutDelay(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(strategies.Unlimited, 0), opts: options(asyncop.WithDropOnFailure()),
		})
		r.answer = func(c *call) error {
			time.Sleep(time.Millisecond) // a millisecond of work on the loop
			if c.in == "a" {
				return errBroken
			}
			return upper(c)
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			r.op.In() <- "a"
			time.Sleep(300 * time.Millisecond)
			r.op.In() <- "b"
			r.op.In() <- "c"
		})
		time.Sleep(time.Hour)
		sending.Wait()
		r.endInput()
		require.Equal(t, "B C", r.outputs())
		require.EqualValues(t, 1, r.stats().Dropped)
		require.NoError(t, r.wait())
	})
}

// Beyond that, retries go first: as many as have permits.
func TestRetriesWithoutDelayGoFirst(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		const permits = 3
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(strategies.Unlimited, 0),
			opts: options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(permits)),
		})
		called, start := map[string]int{}, time.Now()
		r.answer = func(c *call) error {
			time.Sleep(time.Millisecond)
			if time.Since(start) < time.Second/2 { // before the first of them times out
				called[c.in]++
			}
			return errBroken
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			for _, in := range []string{"a", "b", "c", "d"} {
				r.op.In() <- in
			}
		})
		time.Sleep(time.Hour)
		sending.Wait()
		r.endInput()
		require.NoError(t, r.wait())
		require.Len(t, called, permits, "%v", called)
		require.EqualValues(t, 4, r.stats().Timeouts)
	})
}

// Law A5: no attempt starts after a cancel, also where the loop is away and nobody ended its context: Stop has run out of time,
// or the loop over the results was left.
func TestNoAttemptStartsAfterStopHasCancelled(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Hour, strategy: slowPredicate("A"), opts: options(asyncop.WithMaxConcurrentCalls(1))})
		r.sendEach("ab")
		r.call("a#1").Complete("A") // the predicate takes a second
		time.Sleep(500 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.op.Stop(ctx), context.Canceled)
		require.Equal(t, "a#1@0s", r.callTimes())
	})
}

func TestNoAttemptStartsAfterABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHand(t)
		op := asyncop.OrderedWaitWithRetry[string, string](h, time.Hour, 8, slowPredicate("B"), asyncop.WithMaxConcurrentCalls(1))
		h.script("a#1", upper)
		go func() {
			time.Sleep(time.Millisecond)
			h.call("b#1").Complete("B")
		}()
		for _, err := range op.Results(letters("abc")) {
			require.NoError(t, err)
			time.Sleep(500 * time.Millisecond) // the predicate is still at it
			break
		}
		require.Equal(t, "a#1@0s b#1@0s", h.callTimes())
	})
}

// slowPredicate is a strategy whose predicate takes a second for one result.
func slowPredicate(result string) strategies.AsyncRetryStrategy[string] {
	return strategies.FixedDelay[string](0, 0).RetryIfResult(func(results []string) bool {
		if results[0] == result {
			time.Sleep(time.Second)
		}
		return false
	})
}

// Law A5: nor does one start at the deadline or after a cancel when that has come while a logger was told of a dropped element.
func TestNoAttemptStartsTooLateAfterALogger(t *testing.T) {
	for name, away := range map[string]func(r *rig){
		"deadline": func(r *rig) { time.Sleep(2 * time.Second) },
		"cancel":   func(r *rig) { r.cancel(errBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var r *rig
				handler := breakingHandler(sync.OnceFunc(func() { away(r) }))
				r = newRig(t, m, setup{timeout: 1500 * time.Millisecond, opts: options(
					asyncop.WithMaxConcurrentCalls(2), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(handler)))})
				r.script("c#1", func(*call) error { return errBroken })
				r.sendEach("abcde") // c, d and e wait for permits
				a, b := r.call("a#1"), r.call("b#1")
				a.Complete("A")
				b.Complete("B")
				time.Sleep(10 * time.Second)
				require.Equal(t, "a#1@0s b#1@0s c#1@0s", r.callTimes(), "the others are late")
			})
		})
	}
}
