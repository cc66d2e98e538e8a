package retry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// R26, R27, R32: reasons that are always retried do not ask the strategy. They follow the
// controlled back-off and end at the deadline.
func TestAlwaysRetry(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		p := optest.Because(alwaysReason, optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) {
			panic("asked")
		}))
		r := optest.NewRig(t, m, optest.Setup{Timeout: 3 * time.Second, Strategy: p, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Answer = optest.Fails
		r.SendEach("a")
		for range 40 {
			r.Advance(100 * time.Millisecond)
		}
		require.Equal(t, "a#1@0s a#2@1ms a#3@11ms a#4@61ms a#5@161ms a#6@661ms a#7@1.661s a#8@2.661s", r.CallTimes())
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.NoError(t, r.End())
	})
}

// Law A5: such a reason overrides neither the end of the input nor a cancel.
func TestAlwaysRetryAtTheEnd(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(alwaysReason, nil), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput() // a is in back-off, b runs
		r.Fail("a#2", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken)
		require.NoError(t, r.End())
		require.Equal(t, "a#1@0s b#1@0s a#2@0s", r.CallTimes())
		require.EqualValues(t, 2, r.Stats().Exhausted)
	})
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(alwaysReason, nil)})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.Equal(t, "a#1", r.Calls())
	})
}

// A delay that a server demands is kept exactly, without jitter. An element whose server
// demands "never" is not called again.
func TestPushback(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		p := optest.Because(optest.SafeReason, strategies.HonorPushback(strategies.BestEffort[string]())).WithJitter(strategies.FullJitter)
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
		r.SendEach("abc")
		r.Fail("a#1", optest.Demand{Delay: 7 * time.Second})
		r.Fail("b#1", optest.Demand{Delay: -1})
		r.Fail("c#1", optest.Demand{Delay: 0})
		r.Advance(7 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s c#2@0s a#2@7s", r.CallTimes())
		require.Equal(t, "b", side.Elements())
		r.Complete("a#2", "A")
		r.Complete("c#2", "C")
		require.NoError(t, r.End())
	})
}

// Law A5: a wait that a server demands is kept when the input ends, and other back-offs
// get their last attempt immediately.
func TestEndOfInputKeepsADemandedWait(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
			Strategy: optest.Because(optest.SafeReason, strategies.HonorPushback(strategies.BestEffort[string]().
				WithBackoff(func(int) time.Duration { return 10 * time.Second }))),
		})
		r.SendEach("abcd")
		r.Fail("a#1", optest.Demand{Delay: 7 * time.Second})
		r.Fail("b#1", optest.ErrBroken)
		r.Fail("c#1", optest.Demand{Delay: time.Hour}) // longer than its remaining time
		r.Advance(time.Second)
		r.EndInput()
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s", r.CallTimes())
		r.Complete("b#2", "B")
		r.Fail("d#1", optest.Demand{Delay: time.Second}) // retries have ended
		require.Equal(t, "d", side.Elements())
		r.Advance(6 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s a#2@7s", r.CallTimes())
		r.Fail("a#2", optest.Demand{Delay: time.Second}) // no further retry here either
		require.Equal(t, "d a", side.Elements())
		r.Advance(53*time.Second - 1)
		require.Len(t, side.Got(), 2)
		r.Advance(1)
		require.Equal(t, "d a c", side.Elements())
		require.ErrorAs(t, side.Got()[2].Err, new(*asyncop.TimeoutError))
		require.NoError(t, r.End())
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s a#2@7s", r.CallTimes())
		require.Equal(t, "B", r.Outputs())
		optest.CheckBalance(t, r.Stats())
	})
}

// A retry that was cut by the deadline does not count as a retry, neither in the log nor
// in Reasons.
func TestStats_RetryCutByTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: optest.WithoutTime}))
		side := optest.NewSideSink(false)
		p := optest.Because(optest.SafeReason, strategies.HonorPushback(optest.Always(true, strategies.RetryAfter(time.Second))))
		r := optest.NewRig(t, optest.Mode{Ordered: true, Capacity: 4}, optest.Setup{
			Timeout: 10 * time.Second, Strategy: p, Opts: optest.Options(asyncop.WithFailureSink(side.Take), asyncop.WithLogger(logger)),
		})
		r.Send("a")
		r.Advance(9 * time.Second)
		r.Fail("a#1", optest.Demand{Delay: time.Minute})
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "a#1", r.Calls())
		line, _, _ := strings.Cut(b.String(), "\n")
		require.Equal(t, `level=DEBUG msg="asyncop: no retry" attempts=1 delay=1m0s reason=TEST_SAFE error="come back later" `+
			`no_retry="not before the deadline" element=a`, line)
		require.NotContains(t, b.String(), "asyncop: retry")
		f := side.Got()[0]
		require.Equal(t, predicates.ReasonSet{}, f.Reasons)
		require.Equal(t, optest.SafeReason, f.Reason)
		require.EqualValues(t, 0, r.Stats().Retries())
	})
}

// At the end of the input, an element with a capped wait gets its last attempt. The
// attempt counts as a retry for its reason, and its Before runs.
func TestReasonsOfACappedWaitAtTheEndOfInput(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		done := 0
		p := optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Minute).WithBefore(func(context.Context) error {
			done++
			return nil
		})))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: p, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
		r.Send("a")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		r.Fail("a#2", optest.ErrBroken)
		require.NoError(t, r.End())
		require.Equal(t, 1, done)
		require.Equal(t, predicates.ReasonSet{}.With(optest.SafeReason), side.Got()[0].Reasons)
	})
}

// If all calls fail, a budget bounds the retries to 100, plus 10 a second, plus a
// fraction of the first attempts, although every outcome would be retried.
func TestBudgetUnderAnOutage(t *testing.T) {
	const elements, burst, fraction = 5000, 100 + 2*10, 0.1
	for name, base := range map[string]*optest.Policy{
		"reason-aware": optest.Because(optest.SafeReason, nil),
		"FLIP-232":     strategies.PolicyOf[string](optest.RetryAll(5, 10*time.Millisecond)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := backend.New("broken", backend.RetryBudget(fraction))
				r := optest.NewRig(t, optest.Mode{Capacity: 500}, optest.Setup{
					Timeout: time.Second, Strategy: base, Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithBackend(b)),
				})
				r.Answer = optest.Fails
				for i := range elements {
					r.Op.In() <- fmt.Sprint(i)
				}
				r.Advance(2 * time.Second)
				st := r.Stats()
				require.EqualValues(t, elements, st.Dropped)
				require.LessOrEqual(t, st.Retries(), int64(burst+fraction*elements))
				require.GreaterOrEqual(t, st.Retries(), int64(fraction*elements), "and it is used")
				require.Equal(t, st.Attempts, st.Retries()+elements)
				require.Positive(t, st.OverBudget)
				require.GreaterOrEqual(t, st.Exhausted, st.OverBudget)
				require.NoError(t, r.End())
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
}

// An element beyond the number that may wait is not retried, whatever its reason. An
// element whose decision comes later is measured against the number at that time.
func TestMaxWaiting(t *testing.T) {
	for name, p := range map[string]*optest.Policy{
		"on the loop":  optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Second))),
		"off the loop": optest.Because(optest.SafeReason, optest.Always(false, strategies.RetryAfter(time.Second))),
		"FLIP-232":     strategies.PolicyOf[string](optest.RetryAll(5, time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Minute, Strategy: p.WithMaxWaiting(2), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
				})
				r.SendEach("abcd")
				for _, e := range []string{"a", "b", "c"} {
					r.Fail(e+"#1", optest.ErrBroken)
				}
				require.Equal(t, "c", side.Elements())
				require.EqualValues(t, 2, r.Stats().WaitingForRetry)
				require.EqualValues(t, 1, r.Stats().TooManyWaiting)
				r.Advance(time.Second)
				r.Fail("d#1", optest.ErrBroken)
				require.Equal(t, "c", side.Elements())
				r.Advance(time.Second)
				for _, c := range []string{"a#2", "b#2", "d#2"} {
					r.Complete(c, c)
				}
				require.NoError(t, r.End())
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
}

// An error with which the strategy replaces the error of the attempt is reported by a
// timeout, and the element fails with it.
func TestTranslatedErrors(t *testing.T) {
	translated := errors.New("translated")
	for _, atOnce := range []bool{true, false} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			r := optest.NewRig(t, m, optest.Setup{
				Timeout:  time.Second,
				Strategy: optest.Because(optest.SafeReason, optest.Always(atOnce, strategies.RetryAfter(time.Minute).WithError(translated))),
				Opts:     optest.Options(asyncop.WithFailureSink(side.Take)),
			})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			require.ErrorIs(t, side.Got()[0].Err, translated)
			require.NotErrorIs(t, side.Got()[0].Err, optest.ErrBroken)
			require.NoError(t, r.End())
		})
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			p := optest.Aware(
				predicates.ByResult(predicates.EmptyResult[string], optest.SafeReason),
				optest.Always(atOnce, strategies.Action{}.WithError(translated)))
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: p})
			r.SendEach("a")
			r.Complete("a#1")
			require.ErrorIs(t, r.Wait(), translated)
		})
	}
}

// R29: retries and refused retries are logged with their reason, both at debug level.
func TestLogsNameTheReason(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level, ReplaceAttr: optest.WithoutTime}))
			p := optest.Because(optest.SafeReason, optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
				if a.Number == 2 {
					return strategies.Action{}, nil
				}
				return strategies.RetryAfter(time.Second), nil
			}))
			r := optest.NewRig(t, optest.Mode{Ordered: true, Capacity: 4}, optest.Setup{
				Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithLogger(logger)),
			})
			r.Answer = optest.Fails
			r.Send("a")
			r.Advance(time.Second)
			require.NoError(t, r.End())
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			dropped := `level=WARN msg="asyncop: element dropped" attempts=2 error=broken no_retry=refused reason=TEST_SAFE element=a`
			if level == slog.LevelInfo {
				require.Equal(t, []string{dropped}, lines)
				return
			}
			require.Equal(t, []string{
				`level=DEBUG msg="asyncop: retry" attempts=1 delay=1s reason=TEST_SAFE error=broken element=a`,
				`level=DEBUG msg="asyncop: no retry" attempts=2 reason=TEST_SAFE error=broken no_retry=refused element=a`,
				dropped,
			}, lines)
		})
	}
}

// The four constructors accept a policy as the strategy, but not a type that embeds a
// policy.
func TestPoliciesAreStrategies(t *testing.T) {
	type mine struct{ *optest.Policy }
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, nil)})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Millisecond)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A", r.Outputs())
	})
	require.Contains(t, optest.PanicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](optest.NewHand(t), 0, 1, optest.Because(optest.SafeReason, nil))
	}), "a retry strategy needs a positive timeout, got 0s")
	require.Contains(t, optest.PanicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](optest.NewHand(t), time.Second, 1, (*optest.Policy)(nil))
	}), "nil strategy")
	require.Contains(t, optest.PanicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](optest.NewHand(t), time.Second, 1, mine{optest.Because(optest.SafeReason, nil)})
	}), "retry_test.mine is neither a *Policy nor an AsyncRetryStrategy")
}

// The time that a strategy takes is spent when its answer comes: a retry that no longer
// fits is not made.
func TestSlowAnswerIsCappedToTheTimeThatIsLeft(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Opts: optest.Options(asyncop.WithDropOnFailure()),
			Strategy: optest.Because(optest.SafeReason, after(5*time.Second, strategies.RetryAfter(6*time.Second))),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(10 * time.Second)
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.NoError(t, r.End())
	})
}
