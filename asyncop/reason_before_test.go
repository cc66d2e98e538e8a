package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// What a strategy wants done first is done once per retry, after the delay and with the permit, and before the call.
func TestBeforeOncePerRetry(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var r *rig
		var done []string
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
			return strategies.RetryAfter(time.Second).WithBefore(func(ctx context.Context) error {
				done = append(done, fmt.Sprintf("%v before #%d@%v %v", a.Input, asyncop.AttemptFromContext(ctx), r.now(), ctx.Value(valueKey{})))
				return nil
			}), nil
		})
		r = newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason, s)})
		r.sendEach("ab")
		r.complete("b#1", "B")
		r.fail("a#1", errBroken)
		r.advance(time.Second)
		r.fail("a#2", errBroken)
		r.advance(time.Second)
		r.complete("a#3", "A")
		require.Equal(t, []string{"a before #2@1s of the operator", "a before #3@2s of the operator"}, done)
		require.Equal(t, "a#1@0s b#1@0s a#2@1s a#3@2s", r.callTimes())
		require.NoError(t, r.end())
		require.EqualValues(t, 2, r.stats().Retries())
	})
}

// It holds the attempt's permit, and nothing else of the operator waits for it. It is also done for the last retry at
// the end of the input.
func TestBeforeHoldsThePermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var b befores
		action := strategies.RetryAfter(time.Hour).WithBefore(b.slow(time.Second, nil))
		r := newRig(t, m, setup{
			timeout: 2 * time.Hour, strategy: because(safeReason, always(true, action)),
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.sendEach("bc")
		r.complete("b#1", "B")
		r.endInput()
		require.EqualValues(t, 1, r.stats().Running)
		r.complete("c#1", "C")
		require.EqualValues(t, 1, b.begun.Load())
		require.EqualValues(t, 1, r.stats().Running)
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		r.advance(time.Second)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A@1s B@1s C@1s", "B@0s C@0s A@1s"), r.outputTimes())
		require.Zero(t, r.stats().Running)
	})
}

// Its error, panic or Goexit is the outcome of the attempt, in stage ClientDispatch whatever the error says: nothing was
// sent. So a call that must not happen twice is still retried, and is made once.
func TestBeforeThatFails(t *testing.T) {
	errRoute := errors.New("no route")
	for _, b := range append(breakages[:len(breakages):len(breakages)], struct {
		name   string
		breaks func()
		value  any
	}{name: "error"}) {
		t.Run(b.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var stages []predicates.Stage
				var errs []error
				s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
					stages, errs = append(stages, a.Stage), append(errs, a.Err)
					action := strategies.RetryAfter(time.Second)
					if a.Number == 1 {
						action = action.WithBefore(func(ctx context.Context) error {
							predicates.ReportStage(ctx, predicates.NetworkTime) // of the refresh, not of the call
							if b.breaks != nil {
								b.breaks()
							}
							return &predicates.StageError{Stage: predicates.NetworkTime, Err: errRoute}
						})
					}
					return action, nil
				})
				r := newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason, s)})
				r.sendEach("a")
				r.fail("a#1", errBroken)
				r.advance(time.Second)
				require.Equal(t, "a#1", r.calls())
				require.EqualValues(t, 2, r.stats().Attempts)
				require.Zero(t, r.stats().Running)
				r.advance(time.Second)
				require.Equal(t, "a#1 a#3", r.calls())
				require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch}, stages)
				if b.breaks == nil {
					require.ErrorIs(t, errs[1], errRoute)
				} else {
					p, ok := errors.AsType[*asyncop.PanicError](errs[1])
					require.True(t, ok, "%v", errs[1])
					require.Equal(t, b.value, p.Value)
				}
				r.complete("a#3", "A")
				require.NoError(t, r.end())
				checkBalance(t, r.stats())
			})
		})
	}
}

// A3, A5: the deadline and the attempt's timeout stand meanwhile. An attempt that was cut off before its call has sent nothing.
func TestTimeoutsDuringBefore(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		if m.mock {
			return // what runs before sleeps
		}
		var b befores
		var stages []predicates.Stage
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
			stages = append(stages, a.Stage)
			return strategies.RetryAfter(0).WithBefore(b.slow(time.Hour, nil)), nil
		})
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: 25 * time.Second, strategy: because(safeReason, s),
			opts: options(asyncop.WithAttemptTimeout(10*time.Second), asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(10 * time.Second)
		require.EqualValues(t, 1, r.stats().AttemptTimeouts)
		require.EqualValues(t, 1, b.ended.Load())
		r.advance(15*time.Second - 1)
		require.EqualValues(t, 2, r.stats().AttemptTimeouts)
		require.Empty(t, side.elements())
		r.advance(1)
		require.Equal(t, "a", side.elements())
		require.ErrorAs(t, side.got()[0].Err, new(*asyncop.TimeoutError))
		require.EqualValues(t, 3, b.ended.Load())
		require.Equal(t, "a#1", r.calls())
		require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch, predicates.ClientDispatch}, stages)
		r.send("b")
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Zero(t, r.stats().Running)
		require.Zero(t, r.stats().LateCompletions)
	})
}

// A5: what ends exactly at the deadline, or ignores its context and ends after it, is followed by no call.
func TestBeforeThatEndsAtTheDeadline(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 2 * time.Second} {
		forEachMode(t, func(t *testing.T, m mode) {
			action := strategies.RetryAfter(0).WithBefore(func(context.Context) error { time.Sleep(d); return nil })
			r := newRig(t, m, setup{
				timeout: time.Second, strategy: because(safeReason, always(true, action)),
				opts: options(asyncop.WithDropOnFailure()),
			})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			require.EqualValues(t, 1, r.stats().Timeouts)
			r.send("b")
			r.advance(d)
			require.Equal(t, "a#1 b#1", r.calls())
			require.NoError(t, r.end())
		})
	}
}

// F1, A5: after a cancel, no call is made.
func TestCancelDuringBefore(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var b befores
		action := strategies.RetryAfter(0).WithBefore(b.slow(time.Hour, nil))
		r := newRig(t, m, setup{timeout: 2 * time.Hour, strategy: because(safeReason, always(true, action))})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.EqualValues(t, 1, b.begun.Load())
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		require.EqualValues(t, 1, b.ended.Load())
		require.Equal(t, "a#1", r.calls())
		require.EqualValues(t, 1, r.stats().Abandoned)
		require.Zero(t, r.stats().Running)
	})
}

// A5: the end of the input finds it running: it is awaited, the call is made, and no retry follows.
func TestEndOfInputDuringBefore(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var b befores
		action := strategies.RetryAfter(0).WithBefore(b.slow(time.Second, nil))
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, always(true, action)),
			opts: options(asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.endInput()
		r.advance(time.Second)
		r.fail("a#2", errBroken)
		require.NoError(t, r.end())
		require.Equal(t, "a#1@0s a#2@1s", r.callTimes())
		require.EqualValues(t, 1, b.begun.Load())
		require.EqualValues(t, 1, r.stats().Exhausted)
	})
}

// A Blocking call inside of it does not take the permit of the attempt.
func TestBlockingInsideBefore(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		refresh := asyncop.Blocking(func(context.Context, string) (string, error) { return "", nil })
		action := strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			return refresh.AsyncInvoke(ctx, "", discarding{})
		})
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, always(true, action)),
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		require.Equal(t, "a#1 a#2", r.calls(), "and b waits")
		require.EqualValues(t, 1, r.stats().Running)
		r.complete("a#2", "A")
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Zero(t, r.stats().Running)
	})
}

type discarding struct{}

func (discarding) Complete(...string)          {}
func (discarding) CompleteExceptionally(error) {}

// What is done first is before the call, also if it met an answer of a server of its own.
func TestBeforeThatMeetsAStatus(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var seen []string
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
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
		r := newRig(t, m, setup{timeout: time.Minute, strategy: aware(httpretry.Classifier[string](), s)})
		r.sendEach("a")
		r.fail("a#1", &httpretry.StatusError{StatusCode: 429})
		r.complete("a#3", "A")
		require.NoError(t, r.end())
		require.Equal(t, []string{"HTTP_429_TOO_MANY_REQUESTS in response received", "REQUEST_NOT_SENT in client dispatch"}, seen)
	})
}

// T1: what a Before has failed with in time goes before the timers that came due while the loop was away.
func TestBeforeThatFailsInTime(t *testing.T) {
	for _, attemptTimeout := range []time.Duration{time.Hour, time.Second} {
		forEachMode(t, func(t *testing.T, m mode) {
			errPrepare := errors.New("not prepared")
			asked := 0
			s := decides(func(context.Context, *view) (strategies.Action, error) {
				if asked++; asked > 1 {
					return strategies.Action{}, nil
				}
				return strategies.RetryAfter(0).WithBefore(func(context.Context) error {
					time.Sleep(800 * time.Millisecond)
					return errPrepare
				}), nil
			})
			side := newSideSink(false)
			timeout := map[bool]time.Duration{true: time.Second, false: time.Hour}[attemptTimeout == time.Hour]
			r := newRig(t, m, setup{
				timeout: timeout, strategy: because(safeReason, immediate(s)),
				opts: options(asyncop.WithFailureSink(side.take), asyncop.WithAttemptTimeout(attemptTimeout)),
			})
			r.script("x#1", func(c *call) error { time.Sleep(time.Second); return upper(c) }) // the loop is away from 0.5 to 1.5 s
			r.sendEach("a")
			r.fail("a#1", errBroken)
			time.Sleep(500 * time.Millisecond)
			r.op.In() <- "x"
			r.advance(5 * time.Second)
			require.NoError(t, r.end())
			require.Len(t, side.got(), 1)
			require.ErrorIs(t, side.got()[0].Err, errPrepare)
			require.Zero(t, r.stats().LateCompletions)
		})
	}
}
