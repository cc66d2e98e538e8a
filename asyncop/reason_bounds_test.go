package asyncop_test

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
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// R26, R27, R32: reasons that are always retried ask nobody, follow the controlled back-off, and end at the deadline.
func TestAlwaysRetry(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		p := because(alwaysReason, decides(func(context.Context, *view) (strategies.Action, error) {
			panic("asked")
		}))
		r := newRig(t, m, setup{timeout: 3 * time.Second, strategy: p, opts: options(asyncop.WithDropOnFailure())})
		r.answer = fails
		r.sendEach("a")
		for range 40 {
			r.advance(100 * time.Millisecond)
		}
		require.Equal(t, "a#1@0s a#2@1ms a#3@11ms a#4@61ms a#5@161ms a#6@661ms a#7@1.661s a#8@2.661s", r.callTimes())
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.NoError(t, r.end())
	})
}

// A5: it does not outrank the end of the input, nor a cancel.
func TestAlwaysRetryAtTheEnd(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(alwaysReason, nil), opts: options(asyncop.WithDropOnFailure()),
		})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		r.endInput() // a is in back-off, b runs
		r.fail("a#2", errBroken)
		r.fail("b#1", errBroken)
		require.NoError(t, r.end())
		require.Equal(t, "a#1@0s b#1@0s a#2@0s", r.callTimes())
		require.EqualValues(t, 2, r.stats().Exhausted)
	})
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: because(alwaysReason, nil)})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		require.Equal(t, "a#1", r.calls())
	})
}

type demand struct{ delay time.Duration }

func (d demand) Error() string                        { return "come back later" }
func (d demand) RetryPushback() (time.Duration, bool) { return d.delay, true }

// A server that demands a delay gets exactly that, without jitter; one that demands never is not called again.
func TestPushback(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		p := because(safeReason, strategies.HonorPushback(strategies.BestEffort[string]())).WithJitter(strategies.FullJitter)
		side := newSideSink(false)
		r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: options(asyncop.WithFailureSink(side.take))})
		r.sendEach("abc")
		r.fail("a#1", demand{7 * time.Second})
		r.fail("b#1", demand{-1})
		r.fail("c#1", demand{0})
		r.advance(7 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s c#2@0s a#2@7s", r.callTimes())
		require.Equal(t, "b", side.elements())
		r.complete("a#2", "A")
		r.complete("c#2", "C")
		require.NoError(t, r.end())
	})
}

// A5: a wait that a server demands is kept when the input ends; other back-offs get their last attempt at once.
func TestEndOfInputKeepsADemandedWait(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, opts: options(asyncop.WithFailureSink(side.take)),
			strategy: because(safeReason, strategies.HonorPushback(strategies.BestEffort[string]().
				WithBackoff(func(int) time.Duration { return 10 * time.Second }))),
		})
		r.sendEach("abcd")
		r.fail("a#1", demand{7 * time.Second})
		r.fail("b#1", errBroken)
		r.fail("c#1", demand{time.Hour}) // longer than it has
		r.advance(time.Second)
		r.endInput()
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s", r.callTimes())
		r.complete("b#2", "B")
		r.fail("d#1", demand{time.Second}) // there are no retries any more
		require.Equal(t, "d", side.elements())
		r.advance(6 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s a#2@7s", r.callTimes())
		r.fail("a#2", demand{time.Second}) // nor is there another one
		require.Equal(t, "d a", side.elements())
		r.advance(53*time.Second - 1)
		require.Len(t, side.got(), 2)
		r.advance(1)
		require.Equal(t, "d a c", side.elements())
		require.ErrorAs(t, side.got()[2].Err, new(*asyncop.TimeoutError))
		require.NoError(t, r.end())
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@1s a#2@7s", r.callTimes())
		require.Equal(t, "B", r.outputs())
		checkBalance(t, r.stats())
	})
}

// A retry that was cut by the deadline is none: neither the log nor Reasons list it as one.
func TestARetryCutByTheDeadlineIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))
		side := newSideSink(false)
		p := because(safeReason, strategies.HonorPushback(always(true, strategies.RetryAfter(time.Second))))
		r := newRig(t, mode{ordered: true, capacity: 4}, setup{
			timeout: 10 * time.Second, strategy: p, opts: options(asyncop.WithFailureSink(side.take), asyncop.WithLogger(logger)),
		})
		r.send("a")
		r.advance(9 * time.Second)
		r.fail("a#1", demand{time.Minute})
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "a#1", r.calls())
		line, _, _ := strings.Cut(b.String(), "\n")
		require.Equal(t, `level=DEBUG msg="asyncop: no retry" attempts=1 delay=1m0s reason=TEST_SAFE error="come back later" `+
			`verdict="not before the deadline" element=a`, line)
		require.NotContains(t, b.String(), "asyncop: retry")
		f := side.got()[0]
		require.Equal(t, predicates.ReasonSet{}, f.Reasons)
		require.Equal(t, safeReason, f.Reason)
		require.EqualValues(t, 0, r.stats().Retries())
	})
}

// A capped wait gets the last attempt of the end of the input: then it is a retry for its reason, and what is to be done
// first is done.
func TestReasonsOfACappedWaitAtTheEndOfInput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		done := 0
		p := because(safeReason, always(true, strategies.RetryAfter(time.Minute).WithBefore(func(context.Context) error {
			done++
			return nil
		})))
		r := newRig(t, m, setup{timeout: time.Second, strategy: p, opts: options(asyncop.WithFailureSink(side.take))})
		r.send("a")
		r.fail("a#1", errBroken)
		r.endInput()
		r.fail("a#2", errBroken)
		require.NoError(t, r.end())
		require.Equal(t, 1, done)
		require.Equal(t, predicates.ReasonSet{}.With(safeReason), side.got()[0].Reasons)
	})
}

// When everything fails, a budget bounds the retries to 100, 10 a second, and a fraction of the first attempts, though everything is tried.
func TestBudgetUnderAnOutage(t *testing.T) {
	const elements, burst, fraction = 5000, 100 + 2*10, 0.1
	for name, base := range map[string]*policy{
		"reason-aware": because(safeReason, nil),
		"FLIP-232":     strategies.PolicyOf[string](retryAll(5, 10*time.Millisecond)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := backend.New("broken", backend.RetryBudget(fraction))
				r := newRig(t, mode{capacity: 500}, setup{
					timeout: time.Second, strategy: base, opts: options(asyncop.WithDropOnFailure(), asyncop.WithBackend(b)),
				})
				r.answer = fails
				for i := range elements {
					r.op.In() <- fmt.Sprint(i)
				}
				r.advance(2 * time.Second)
				st := r.stats()
				require.EqualValues(t, elements, st.Dropped)
				require.LessOrEqual(t, st.Retries(), int64(burst+fraction*elements))
				require.GreaterOrEqual(t, st.Retries(), int64(fraction*elements), "and it is used")
				require.Equal(t, st.Attempts, st.Retries()+elements)
				require.Positive(t, st.OverBudget)
				require.GreaterOrEqual(t, st.Exhausted, st.OverBudget)
				require.NoError(t, r.end())
				checkBalance(t, r.stats())
			})
		})
	}
}

// One more than may wait is not retried, for whatever reason; those whose decision comes later find the places of then.
func TestMaxWaiting(t *testing.T) {
	for name, p := range map[string]*policy{
		"on the loop":  because(safeReason, always(true, strategies.RetryAfter(time.Second))),
		"off the loop": because(safeReason, always(false, strategies.RetryAfter(time.Second))),
		"FLIP-232":     strategies.PolicyOf[string](retryAll(5, time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				r := newRig(t, m, setup{
					timeout: time.Minute, strategy: p.WithMaxWaiting(2), opts: options(asyncop.WithFailureSink(side.take)),
				})
				r.sendEach("abcd")
				for _, e := range []string{"a", "b", "c"} {
					r.fail(e+"#1", errBroken)
				}
				require.Equal(t, "c", side.elements())
				require.EqualValues(t, 2, r.stats().WaitingForRetry)
				require.EqualValues(t, 1, r.stats().TooManyWaiting)
				r.advance(time.Second)
				r.fail("d#1", errBroken)
				require.Equal(t, "c", side.elements())
				r.advance(time.Second)
				for _, c := range []string{"a#2", "b#2", "d#2"} {
					r.complete(c, c)
				}
				require.NoError(t, r.end())
				checkBalance(t, r.stats())
			})
		})
	}
}

// An error that the strategy puts in the place of the attempt's is what a timeout tells, and what the element fails with.
func TestTranslatedErrors(t *testing.T) {
	translated := errors.New("translated")
	for _, atOnce := range []bool{true, false} {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			r := newRig(t, m, setup{
				timeout:  time.Second,
				strategy: because(safeReason, always(atOnce, strategies.RetryAfter(time.Minute).WithError(translated))),
				opts:     options(asyncop.WithFailureSink(side.take)),
			})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			require.ErrorIs(t, side.got()[0].Err, translated)
			require.NotErrorIs(t, side.got()[0].Err, errBroken)
			require.NoError(t, r.end())
		})
		forEachMode(t, func(t *testing.T, m mode) {
			p := aware(
				predicates.ByResult(predicates.EmptyResult[string], safeReason),
				always(atOnce, strategies.Action{}.WithError(translated)))
			r := newRig(t, m, setup{timeout: time.Second, strategy: p})
			r.sendEach("a")
			r.complete("a#1")
			require.ErrorIs(t, r.wait(), translated)
		})
	}
}

// R29: what is retried and what is not is logged with its reason, both at debug level.
func TestLogsNameTheReason(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime}))
			p := because(safeReason, decides(func(_ context.Context, a *view) (strategies.Action, error) {
				if a.Number == 2 {
					return strategies.Action{}, nil
				}
				return strategies.RetryAfter(time.Second), nil
			}))
			r := newRig(t, mode{ordered: true, capacity: 4}, setup{
				timeout: time.Minute, strategy: p, opts: options(asyncop.WithDropOnFailure(), asyncop.WithLogger(logger)),
			})
			r.answer = fails
			r.send("a")
			r.advance(time.Second)
			require.NoError(t, r.end())
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			dropped := `level=WARN msg="asyncop: element dropped" attempts=2 error=broken verdict=refused reason=TEST_SAFE element=a`
			if level == slog.LevelInfo {
				require.Equal(t, []string{dropped}, lines)
				return
			}
			require.Equal(t, []string{
				`level=DEBUG msg="asyncop: retry" attempts=1 delay=1s reason=TEST_SAFE error=broken element=a`,
				`level=DEBUG msg="asyncop: no retry" verdict=refused reason=TEST_SAFE attempts=2 error=broken element=a`,
				dropped,
			}, lines)
		})
	}
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// The four constructors take a policy as the strategy it is, and nothing that embeds one.
func TestPoliciesAreStrategies(t *testing.T) {
	type mine struct{ *policy }
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason, nil)})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(time.Millisecond)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A", r.outputs())
	})
	require.Contains(t, panicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](newHand(t), 0, 1, because(safeReason, nil))
	}), "a retry strategy needs a positive timeout, got 0s")
	require.Contains(t, panicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](newHand(t), time.Second, 1, (*policy)(nil))
	}), "nil strategy")
	require.Contains(t, panicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](newHand(t), time.Second, 1, mine{because(safeReason, nil)})
	}), "asyncop_test.mine embeds a *Policy")
}

// The time that a strategy takes is gone when its answer comes: a retry that no longer fits is not made.
func TestSlowAnswerIsCappedToTheTimeThatIsLeft(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: 10 * time.Second, opts: options(asyncop.WithDropOnFailure()),
			strategy: because(safeReason, after(5*time.Second, strategies.RetryAfter(6*time.Second))),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(10 * time.Second)
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.NoError(t, r.end())
	})
}
