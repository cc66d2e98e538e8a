package timeouts_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/strategies"
)

// ---- Blocking calls inside a wrapper that come too late are not made, and completions
// by the wrapper do not count. The element ends as it would without the wrapper.

// around is a wrapper with functions that run before and after AsyncInvoke, on the loop.
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

// lateCall returns a function whose call is late because of before. The loop handles it a
// millisecond later.
func lateCall(t *testing.T, before func()) optest.Function {
	t.Helper()
	return &around{
		AsyncFunction: asyncop.Blocking(func(context.Context, string) (string, error) {
			t.Error("the call was made")
			return "", nil
		}),
		before: before, after: func() { time.Sleep(time.Millisecond) },
	}
}

func TestWrappedCallLateByCancel(t *testing.T) {
	for _, withSide := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			opts := optest.Options(asyncop.WithContext(ctx))
			var side *optest.SideSink
			if withSide {
				side = optest.NewSideSink(false)
				opts = append(opts, asyncop.WithFailureSink(side.Take))
			}
			op := asyncop.OrderedWait(lateCall(t, func() { cancel(optest.ErrBroken) }), time.Minute, 5, opts...)
			_, err := optest.EndOf(op)
			require.ErrorIs(t, err, optest.ErrBroken)
			require.EqualValues(t, 1, op.Stats().Abandoned)
			if withSide {
				require.True(t, side.Got()[0].Abandoned)
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
				fn = optest.TimeoutMethod(fn, func(context.Context, string) ([]string, error) { return []string{"handled"}, nil })
			}
			op := asyncop.OrderedWait(fn, time.Second, 5)
			got, err := optest.EndOf(op)
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
		_, err := optest.EndOf(op)
		var timeout *asyncop.AttemptTimeoutError
		require.ErrorAs(t, err, &timeout)
		require.EqualValues(t, 1, op.Stats().AttemptTimeouts)
	})
}

// An error of the handler is the element's error, even if it is the panic of another
// operator.
func TestTimeoutHandlerThatReturnsAPanicError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := &asyncop.PanicError{Value: "of another operator"}
		fn := optest.TimeoutMethod(optest.NewHand(t), func(context.Context, string) ([]string, error) { return nil, mine })
		_, err := optest.EndOf(asyncop.OrderedWait(fn, time.Second, 4))
		var failed *asyncop.ElementError
		require.ErrorAs(t, err, &failed)
		require.Same(t, mine, failed.Err)
	})
}

// Retries without a delay do not delay first attempts as long as there are permits for
// both.
func TestFirstAttemptsBesideRetriesWithoutDelay(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(strategies.Unlimited, 0), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Answer = func(c *optest.Call) error {
			time.Sleep(time.Millisecond) // a millisecond of work on the loop
			if c.In == "a" {
				return optest.ErrBroken
			}
			return optest.Upper(c)
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			r.Op.In() <- "a"
			time.Sleep(300 * time.Millisecond)
			r.Op.In() <- "b"
			r.Op.In() <- "c"
		})
		time.Sleep(time.Hour)
		sending.Wait()
		r.EndInput()
		require.Equal(t, "B C", r.Outputs())
		require.EqualValues(t, 1, r.Stats().Dropped)
		require.NoError(t, r.Wait())
	})
}

// Beyond that, as many retries as there are permits go first.
func TestRetriesWithoutDelayGoFirst(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		const permits = 3
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(strategies.Unlimited, 0),
			Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(permits)),
		})
		called, start := map[string]int{}, time.Now()
		r.Answer = func(c *optest.Call) error {
			time.Sleep(time.Millisecond)
			if time.Since(start) < time.Second/2 { // before the first of them times out
				called[c.In]++
			}
			return optest.ErrBroken
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			for _, in := range []string{"a", "b", "c", "d"} {
				r.Op.In() <- in
			}
		})
		time.Sleep(time.Hour)
		sending.Wait()
		r.EndInput()
		require.NoError(t, r.Wait())
		require.Len(t, called, permits, "%v", called)
		require.EqualValues(t, 4, r.Stats().Timeouts)
	})
}

func TestAttempt_NotStartedAfterABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := optest.NewHand(t)
		op := asyncop.OrderedWaitWithRetry[string, string](h, time.Hour, 8, optest.SlowPredicate("B"), asyncop.WithMaxConcurrentCalls(1))
		h.Script("a#1", optest.Upper)
		go func() {
			time.Sleep(time.Millisecond)
			h.Call("b#1").Complete("B")
		}()
		for _, err := range op.Results(optest.Letters("abc")) {
			require.NoError(t, err)
			time.Sleep(500 * time.Millisecond) // the predicate still runs
			break
		}
		require.Equal(t, "a#1@0s b#1@0s", h.CallTimes())
	})
}

// Law A5: an attempt does not start at the deadline or after a cancel that came while a
// logger handled a dropped element.
func TestWithLogger_NoAttemptTooLateAfterIt(t *testing.T) {
	for name, away := range map[string]func(r *optest.Rig){
		"deadline": func(r *optest.Rig) { time.Sleep(2 * time.Second) },
		"cancel":   func(r *optest.Rig) { r.Cancel(optest.ErrBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var r *optest.Rig
				handler := optest.BreakingHandler(sync.OnceFunc(func() { away(r) }))
				r = optest.NewRig(t, m, optest.Setup{Timeout: 1500 * time.Millisecond, Opts: optest.Options(
					asyncop.WithMaxConcurrentCalls(2), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(handler)))})
				r.Script("c#1", func(*optest.Call) error { return optest.ErrBroken })
				r.SendEach("abcde") // c, d and e wait for permits
				a, b := r.Call("a#1"), r.Call("b#1")
				a.Complete("A")
				b.Complete("B")
				time.Sleep(10 * time.Second)
				require.Equal(t, "a#1@0s b#1@0s c#1@0s", r.CallTimes(), "the others are late")
			})
		})
	}
}
