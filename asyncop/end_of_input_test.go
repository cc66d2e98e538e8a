package asyncop_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A5: after the end of the input, waiting elements get one last attempt at once, and there are no more retries.

// A5: an element that was never started gets its first attempt, within the call limit, and no other.
func TestEndOfInputStartsWhatWasNotStarted(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, time.Second),
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.sendEach("abc")
		r.endInput()
		require.Equal(t, "a#1", r.calls())
		r.complete("a#1", "A")
		require.Equal(t, "a#1 b#1", r.calls())
		r.fail("b#1", errBroken)
		r.complete("c#1", "C")
		require.NoError(t, r.wait())
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		require.Equal(t, "A C", r.outputs())
		require.Zero(t, r.stats().Retries())
		require.Zero(t, r.stats().WaitingForRetry)
	})
}

// A5: an element in back-off gets exactly one more attempt, at once; what that leads to is final.
func TestEndOfInputRetriesWhatIsInBackoffOnce(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, 10*time.Second), opts: options(asyncop.WithDropOnFailure()),
		})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		r.fail("b#1", errBroken)
		r.complete("c#1")
		r.advance(time.Second)
		r.endInput()
		require.Equal(t, "a#1@0s b#1@0s c#1@0s a#2@1s b#2@1s c#2@1s", r.callTimes())
		r.complete("a#2", "A")
		r.fail("b#2", errBroken) // would be retried
		r.complete("c#2")        // would be retried
		require.NoError(t, r.wait())
		require.Equal(t, "a#1 b#1 c#1 a#2 b#2 c#2", r.calls())
		require.Equal(t, "A", r.outputs())
	})
}

// A5: whatever the strategy says about a further attempt: it allowed this one when the back-off began.
func TestEndOfInputUsesUpTheRetryThatWasAllowed(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, time.Second)})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.endInput()
		require.Equal(t, "a#1 a#2", r.calls())
		r.fail("a#2", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
		require.Equal(t, "a#1 a#2", r.calls())
	})
}

// A5: one whose retry could not start before its deadline counts as in back-off.
func TestEndOfInputRetriesACappedWait(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, time.Hour)})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(500 * time.Millisecond)
		r.endInput()
		require.Equal(t, "a#1@0s a#2@500ms", r.callTimes())
		r.complete("a#2", "A")
		require.NoError(t, r.wait())
		require.Equal(t, "A", r.outputs())
	})
}

// A5: a running attempt is awaited, not called a second time, also if it is a retry already; its outcome is final.
func TestEndOfInputAwaitsRunningAttempts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, 0), opts: options(asyncop.WithDropOnFailure()),
		})
		r.sendEach("abc")
		r.fail("b#1", errBroken)
		r.fail("c#1", errBroken)
		r.endInput()
		r.advance(10 * time.Second)
		require.Equal(t, "a#1 b#1 c#1 b#2 c#2", r.calls())
		r.complete("a#1", "A")
		r.complete("b#2", "B")
		r.fail("c#2", errBroken) // not retried
		require.NoError(t, r.wait())
		require.Equal(t, "a#1 b#1 c#1 b#2 c#2", r.calls())
		require.Equal(t, "A B", r.outputs())
	})
}

// A5: a retry that is due but waits for a permit gets its one attempt when there is one.
func TestEndOfInputWithARetryThatWaitsForAPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, time.Second), opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.sendEach("b")
		r.advance(time.Second) // a is due, b has the permit
		r.endInput()
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1", "B")
		require.Equal(t, "a#1 b#1 a#2", r.calls())
		r.complete("a#2")
		require.NoError(t, r.wait())
		require.Equal(t, "a#1 b#1 a#2", r.calls())
		require.Equal(t, "B", r.outputs())
	})
}

// A5: the last attempts keep to the call limit: the oldest goes first, before first attempts.
func TestEndOfInputKeepsTheCallLimit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, time.Second), opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		for _, e := range []string{"a", "b", "c"} {
			r.sendEach(e)
			r.fail(e+"#1", errBroken)
			r.advance(time.Millisecond)
		}
		r.sendEach("xf") // x runs
		r.endInput()
		r.complete("x#1")
		for _, name := range []string{"a#2", "b#2", "c#2", "f#1"} {
			require.Regexp(t, name+"$", r.calls())
			r.complete(name)
		}
		require.NoError(t, r.wait())
	})
}

// A5: deadlines hold while the operator drains.
func TestTimeoutsFireWhileDraining(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, time.Minute), wrap: handled})
		r.sendEach("a")
		r.advance(time.Millisecond)
		r.sendEach("b")
		r.fail("b#1", errBroken)
		r.endInput()
		r.advance(time.Second)
		require.NoError(t, r.wait())
		require.Equal(t, "a!@1s b!@1.001s", r.outputTimes())
	})
}

// End of input is noticed when a slot is free to read for.
func TestEndOfInputIsNoticedWhenASlotIsFree(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 2
		r := newRig(t, m, setup{timeout: time.Hour, strategy: retryAll(9, time.Minute)})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		r.endInput()
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1", "B")
		require.Equal(t, m.pick("a#1 b#1", "a#1 b#1 a#2"), r.calls(), "in order, b waits in its slot for a")
		r.advance(time.Minute)
		r.complete("a#2", "A")
		require.NoError(t, r.wait())
		require.Equal(t, m.pick("A B", "B A"), r.outputs())
	})
}

// WithDrainRetries lets waiting retries, and those that follow, run their course.
func TestDrainRetries(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, 10*time.Second), opts: options(asyncop.WithDrainRetries()),
		})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		r.endInput()
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1") // b's first back-off begins after the end
		r.advance(10 * time.Second)
		r.complete("a#2")
		r.complete("b#2", "B")
		r.advance(10 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s a#2@10s b#2@10s a#3@20s", r.callTimes())
		r.complete("a#3", "A")
		require.NoError(t, r.wait())
		require.Equal(t, m.pick("A B", "B A"), r.outputs())
	})
}

// A5: with WithDrainRetries, an element that waits for its deadline does so.
func TestDrainRetriesAwaitsTheDeadline(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(3, 10*time.Second), wrap: handled,
			opts: options(asyncop.WithDrainRetries()),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.endInput()
		r.advance(time.Second)
		require.NoError(t, r.wait())
		require.Equal(t, "a#1", r.calls())
		require.Equal(t, "a!@1s", r.outputTimes())
	})
}

// An empty input ends an operator that never did anything.
func TestEndOfEmptyInput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(1, 0)})
		require.NoError(t, r.end())
		require.Equal(t, asyncop.Stats{}, r.stats())
	}, 1, 16)
}

// ---- A5: no attempt starts at or after the deadline

// A5: an element that has waited for a permit and finds its deadline come is not called: neither a moment after the
// deadline nor in its very moment.
func TestNoAttemptStartsAtTheDeadline(t *testing.T) {
	for _, away := range []time.Duration{500 * time.Millisecond, 600 * time.Millisecond} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{
				timeout: time.Second, strategy: retryAll(9, 100*time.Millisecond), wrap: handled,
				opts: options(asyncop.WithMaxConcurrentCalls(3)),
			})
			r.sendEach("rab")
			r.fail("r#1", errBroken)
			r.sendEach("xcd") // r's retry waits for a permit, c and d for their first attempt
			r.script("r#2", func(*call) error { time.Sleep(away); return nil })
			r.advance(500 * time.Millisecond)
			a, b := r.call("a#1"), r.call("b#1")
			a.Complete("A")
			b.Complete("B") // permits for r and c, but r takes the loop to the deadline
			r.advance(time.Second)
			require.Equal(t, "r#1@0s a#1@0s b#1@0s x#1@0s r#2@500ms", r.callTimes())
			require.EqualValues(t, 4, r.stats().Timeouts)
			require.NoError(t, r.end())
		})
	}
}

// ---- A5: no attempt starts after a cancel

// A5: in whatever phase an element is when the operator is cancelled, it is not called any more.
func TestNoAttemptStartsAfterACancel(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := inEveryPhase(t, m, side)
		before := r.calls()
		r.cancel(errTestOver)
		r.advance(time.Minute)
		r.endInput()
		r.advance(time.Minute)
		require.Equal(t, before, r.calls())
		side.unblock()
		require.Error(t, r.wait())
	})
}

// A5: nor after a failure.
func TestNoAttemptStartsAfterAFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := strategies.FixedDelay[string](9, time.Second).RetryIfException(predicates.ErrorIs(errBroken))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: s, opts: options(asyncop.WithMaxConcurrentCalls(3))})
		r.sendEach("abcf")
		r.fail("b#1", errBroken)
		require.Equal(t, "a#1 b#1 c#1 f#1", r.calls())
		r.fail("c#1", context.Canceled)
		r.advance(time.Minute)
		require.ErrorIs(t, r.wait(), context.Canceled)
		require.Equal(t, "a#1 b#1 c#1 f#1", r.calls())
	})
}

// A5: nor do those that wait for the permit that the failure sets free.
func TestNoWaitingAttemptStartsAfterAFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(1))})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
		require.Equal(t, "a#1", r.calls())
	})
}

// A5: elements that the loop would take, or start, in the turn in which the operator is cancelled are not called.
func TestNoAttemptStartsInTheTurnOfTheCancel(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("a#1", func(*call) error {
			time.Sleep(time.Second)
			r.cancel(errTestOver)
			return nil
		})
		r.op.In() <- "a"
		synctest.Wait()
		r.op.In() <- "b"
		r.op.In() <- "c"
		require.ErrorIs(t, r.wait(), errTestOver)
		require.Equal(t, "a#1", r.calls())
	})
}

// A5: the same for elements that wait for permits.
func TestNoWaitingAttemptStartsInTheTurnOfTheCancel(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, time.Second),
			opts: options(asyncop.WithMaxConcurrentCalls(2)),
		})
		r.sendEach("abcd")
		r.script("c#1", func(*call) error { r.cancel(errTestOver); return nil })
		a, b := r.call("a#1"), r.call("b#1")
		a.Complete("A")
		b.Complete("B") // two permits for c and d
		require.ErrorIs(t, r.wait(), errTestOver)
		require.Equal(t, "a#1 b#1 c#1", r.calls())
	})
}

// A5: cancelled before its first element, an operator calls nothing.
func TestOperatorCancelledBeforeItBegan(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errTestOver)
		r := newRig(t, m, setup{opts: options(asyncop.WithContext(ctx))})
		r.sendEach("ab")
		require.Equal(t, errTestOver, r.wait())
		require.Empty(t, r.calls())
		r.endInput()
		require.EqualValues(t, 2, r.stats().Discarded)
	})
}

// ---- What the end of the input cuts is not lost without a word.

// lateRows answers with nothing at first, and with the element on its third attempt.
func lateRows(c *call) error {
	if c.attempt < 3 {
		return empty(c)
	}
	return upper(c)
}

// A finite input whose results come late: a flow cuts the retries, as Flink does, counts what it cut, and says so once.
func TestCutRetriesAreToldOf(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(3, time.Second), opts: options(asyncop.WithLogger(logger))})
		r.answer = lateRows
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Empty(t, r.outputs())
		require.Equal(t, "a#1 b#1 c#1 a#2 b#2 c#2", r.calls())
		require.EqualValues(t, 3, r.stats().CutByEndOfInput)
		require.EqualValues(t, 3, r.stats().Exhausted)
		require.Equal(t, `level=WARN msg="asyncop: the input ended while elements still asked for a retry: they got none; `+
			`WithDrainRetries lets retries go on" elements=3`+"\n", b.String())
	})
}

// With WithDrainRetries nothing is cut, and nothing is said.
func TestDrainedRetriesAreNotCut(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, time.Second),
			opts: options(asyncop.WithLogger(logger), asyncop.WithDrainRetries()),
		})
		r.answer = lateRows
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "A B C", r.outputs())
		require.Zero(t, r.stats().CutByEndOfInput)
		require.Empty(t, b.String())
	})
}

// Only the end of the input is to blame for what a strategy would have allowed.
func TestSpentRetriesAreNotCut(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, time.Second)})
		r.answer = lateRows
		r.sendEach("a")
		require.NoError(t, r.end())
		require.Equal(t, "a#1 a#2", r.calls())
		require.EqualValues(t, 1, r.stats().Exhausted)
		require.Zero(t, r.stats().CutByEndOfInput)
	})
}

// The input of Results is finite as a rule, and its end no reason to do without results: retries run their course.
func TestResultsDrainsRetries(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		h := newHand(t)
		h.answer = lateRows
		op := construct[string, string](m, h, time.Minute, retryAll(3, time.Second), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		got := ""
		for out, err := range op.Results(letters("abc")) {
			require.NoError(t, err)
			got += out
		}
		require.Equal(t, "ABC", got)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s a#2@1s b#2@1s c#2@1s a#3@2s b#3@2s c#3@2s", h.callTimes())
	})
}
