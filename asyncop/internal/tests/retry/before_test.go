package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// A Before runs once per retry: after the delay, with the permit, and before the call.
func TestBeforeOncePerRetry(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var r *optest.Rig
		var done []string
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			return strategies.RetryAfter(time.Second).WithBefore(func(ctx context.Context) error {
				done = append(done, fmt.Sprintf("%v before #%d@%v %v", a.Input, asyncop.AttemptFromContext(ctx), r.Now(), ctx.Value(optest.ValueKey{})))
				return nil
			}), nil
		})
		r = optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s)})
		r.SendEach("ab")
		r.Complete("b#1", "B")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Second)
		r.Fail("a#2", optest.ErrBroken)
		r.Advance(time.Second)
		r.Complete("a#3", "A")
		require.Equal(t, []string{"a before #2@1s of the operator", "a before #3@2s of the operator"}, done)
		require.Equal(t, "a#1@0s b#1@0s a#2@1s a#3@2s", r.CallTimes())
		require.NoError(t, r.End())
		require.EqualValues(t, 2, r.Stats().Retries())
	})
}

// A Before holds the attempt's permit and blocks only its own element. It also runs for
// the last retry, at the end of the input.
func TestBeforeHoldsThePermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var b befores
		action := strategies.RetryAfter(time.Hour).WithBefore(b.slow(time.Second, nil))
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 2 * time.Hour, Strategy: optest.Because(optest.SafeReason, optest.Always(true, action)),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.SendEach("bc")
		r.Complete("b#1", "B")
		r.EndInput()
		require.EqualValues(t, 1, r.Stats().Running)
		r.Complete("c#1", "C")
		require.EqualValues(t, 1, b.begun.Load())
		require.EqualValues(t, 1, r.Stats().Running)
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		r.Advance(time.Second)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A@1s B@1s C@1s", "B@0s C@0s A@1s"), r.OutputTimes())
		require.Zero(t, r.Stats().Running)
	})
}

// An error, a panic or a Goexit of a Before is the outcome of the attempt. Its stage is
// ClientDispatch, whatever the error reports, because the call was not sent. So a call
// that is not idempotent is still retried, and is made once.
func TestBeforeThatFails(t *testing.T) {
	errRoute := errors.New("no route")
	for _, b := range append(slices.Clip(optest.Breakages), optest.Breakage{Name: "error"}) {
		t.Run(b.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var stages []predicates.Stage
				var errs []error
				s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
					stages, errs = append(stages, a.Stage), append(errs, a.Err)
					action := strategies.RetryAfter(time.Second)
					if a.Number == 1 {
						action = action.WithBefore(func(ctx context.Context) error {
							predicates.ReportStage(ctx, predicates.NetworkTime) // reported by the refresh, not by the call
							if b.Breaks != nil {
								b.Breaks()
							}
							return &predicates.StageError{Stage: predicates.NetworkTime, Err: errRoute}
						})
					}
					return action, nil
				})
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s)})
				r.SendEach("a")
				r.Fail("a#1", optest.ErrBroken)
				r.Advance(time.Second)
				require.Equal(t, "a#1", r.Calls())
				require.EqualValues(t, 2, r.Stats().Attempts)
				require.Zero(t, r.Stats().Running)
				r.Advance(time.Second)
				require.Equal(t, "a#1 a#3", r.Calls())
				require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch}, stages)
				if b.Breaks == nil {
					require.ErrorIs(t, errs[1], errRoute)
				} else {
					p, ok := errors.AsType[*asyncop.PanicError](errs[1])
					require.True(t, ok, "%v", errs[1])
					require.Equal(t, b.Value, p.Value)
				}
				r.Complete("a#3", "A")
				require.NoError(t, r.End())
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
}

// Laws A3, A5: the deadline and the attempt's timeout apply during a Before. An attempt
// that was cut off before its call has sent nothing.
func TestTimeoutsDuringBefore(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		if m.Mock {
			return // the Before sleeps
		}
		var b befores
		var stages []predicates.Stage
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			stages = append(stages, a.Stage)
			return strategies.RetryAfter(0).WithBefore(b.slow(time.Hour, nil)), nil
		})
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 25 * time.Second, Strategy: optest.Because(optest.SafeReason, s),
			Opts: optest.Options(asyncop.WithAttemptTimeout(10*time.Second), asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(10 * time.Second)
		require.EqualValues(t, 1, r.Stats().AttemptTimeouts)
		require.EqualValues(t, 1, b.ended.Load())
		r.Advance(15*time.Second - 1)
		require.EqualValues(t, 2, r.Stats().AttemptTimeouts)
		require.Empty(t, side.Elements())
		r.Advance(1)
		require.Equal(t, "a", side.Elements())
		require.ErrorAs(t, side.Got()[0].Err, new(*asyncop.TimeoutError))
		require.EqualValues(t, 3, b.ended.Load())
		require.Equal(t, "a#1", r.Calls())
		require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch, predicates.ClientDispatch}, stages)
		r.Send("b")
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Zero(t, r.Stats().Running)
		require.Zero(t, r.Stats().LateCompletions)
	})
}

// Law W3: a Before that ignores the end of its context is bounded. When twice as many are
// running as there are slots, the next Before does not run, and its attempt fails with an
// error that explains this.
func TestBeforesThatAreLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		action := strategies.RetryAfter(time.Second).WithBefore(func(context.Context) error { <-proceed; return nil })
		side := optest.NewSideSink(false)
		fn := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			if asyncop.AttemptFromContext(ctx) == 1 {
				return "", optest.ErrBroken
			}
			return in, nil
		})
		op := asyncop.OrderedWaitWithRetry(fn, 15*time.Second, 1, optest.Because(optest.SafeReason, optest.Always(true, action)),
			asyncop.WithAttemptTimeout(10*time.Second), asyncop.WithFailureSink(side.Take))
		op.In() <- "a"
		op.In() <- "b"
		time.Sleep(31 * time.Second)
		require.Len(t, side.Got(), 2)
		require.NotContains(t, side.Got()[0].Err.Error(), "twice as many")
		require.ErrorContains(t, side.Got()[1].Err, "twice as many")
		close(proceed)
		op.In() <- "c"
		close(op.In())
		require.Equal(t, "c", <-op.Out())
		require.NoError(t, op.Wait())
	})
}

// Law A5: no call follows a Before that ends exactly at the deadline, or that ignores its
// context and ends later.
func TestBeforeThatEndsAtTheDeadline(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 2 * time.Second} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			action := strategies.RetryAfter(0).WithBefore(func(context.Context) error { time.Sleep(d); return nil })
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Second, Strategy: optest.Because(optest.SafeReason, optest.Always(true, action)),
				Opts: optest.Options(asyncop.WithDropOnFailure()),
			})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			require.EqualValues(t, 1, r.Stats().Timeouts)
			r.Send("b")
			r.Advance(d)
			require.Equal(t, "a#1 b#1", r.Calls())
			require.NoError(t, r.End())
		})
	}
}

// Laws F1, A5: after a cancel, no call is made.
func TestCancelDuringBefore(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var b befores
		action := strategies.RetryAfter(0).WithBefore(b.slow(time.Hour, nil))
		r := optest.NewRig(t, m, optest.Setup{Timeout: 2 * time.Hour, Strategy: optest.Because(optest.SafeReason, optest.Always(true, action))})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.EqualValues(t, 1, b.begun.Load())
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.EqualValues(t, 1, b.ended.Load())
		require.Equal(t, "a#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().Abandoned)
		require.Zero(t, r.Stats().Running)
	})
}

// Law A5: the input ends while a Before runs. The Before is awaited, the call is made,
// and no retry follows.
func TestEndOfInputDuringBefore(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var b befores
		action := strategies.RetryAfter(0).WithBefore(b.slow(time.Second, nil))
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, optest.Always(true, action)),
			Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		r.Advance(time.Second)
		r.Fail("a#2", optest.ErrBroken)
		require.NoError(t, r.End())
		require.Equal(t, "a#1@0s a#2@1s", r.CallTimes())
		require.EqualValues(t, 1, b.begun.Load())
		require.EqualValues(t, 1, r.Stats().Exhausted)
	})
}

// A Blocking call inside a Before does not take the permit of the attempt.
func TestBlockingInsideBefore(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		refresh := asyncop.Blocking(func(context.Context, string) (string, error) { return "", nil })
		action := strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			return refresh.AsyncInvoke(ctx, "", discarding{})
		})
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, optest.Always(true, action)),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		require.Equal(t, "a#1 a#2", r.Calls(), "and b waits")
		require.EqualValues(t, 1, r.Stats().Running)
		r.Complete("a#2", "A")
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Zero(t, r.Stats().Running)
	})
}

type discarding struct{}

func (discarding) Complete(...string)          {}
func (discarding) CompleteExceptionally(error) {}

// A failure of a Before precedes the call, even if the Before got an answer from another
// server.
func TestBeforeThatMeetsAStatus(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var seen []string
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			seen = append(seen, fmt.Sprintf("%v in %v", a.Reason, a.Stage))
			if a.Number < 3 {
				return strategies.RetryAfter(0).WithBefore(func(context.Context) error {
					if a.Number == 1 {
						return &httpretry.StatusError{StatusCode: 503}
					}
					return nil
				}), nil
			}
			return strategies.Action{}, nil
		})
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Aware(httpretry.Classifier[string](), s)})
		r.SendEach("a")
		r.Fail("a#1", &httpretry.StatusError{StatusCode: 429})
		r.Complete("a#3", "A")
		require.NoError(t, r.End())
		require.Equal(t, []string{"HTTP_429_TOO_MANY_REQUESTS in response received", "REQUEST_NOT_SENT in client dispatch"}, seen)
	})
}

// Law T1: an error that a Before returned in time is handled before the timers that came
// due while the loop was busy.
func TestBeforeThatFailsInTime(t *testing.T) {
	for _, attemptTimeout := range []time.Duration{time.Hour, time.Second} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			errPrepare := errors.New("not prepared")
			asked := 0
			s := optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) {
				if asked++; asked > 1 {
					return strategies.Action{}, nil
				}
				return strategies.RetryAfter(0).WithBefore(func(context.Context) error {
					time.Sleep(800 * time.Millisecond)
					return errPrepare
				}), nil
			})
			side := optest.NewSideSink(false)
			timeout := map[bool]time.Duration{true: time.Second, false: time.Hour}[attemptTimeout == time.Hour]
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: timeout, Strategy: optest.Because(optest.SafeReason, optest.Immediate(s)),
				Opts: optest.Options(asyncop.WithFailureSink(side.Take), asyncop.WithAttemptTimeout(attemptTimeout)),
			})
			r.Script("x#1", func(c *optest.Call) error { time.Sleep(time.Second); return optest.Upper(c) }) // the loop is busy from 0.5 to 1.5 s
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			time.Sleep(500 * time.Millisecond)
			r.Op.In() <- "x"
			r.Advance(5 * time.Second)
			require.NoError(t, r.End())
			require.Len(t, side.Got(), 1)
			require.ErrorIs(t, side.Got()[0].Err, errPrepare)
			require.Zero(t, r.Stats().LateCompletions)
		})
	}
}
