package endings_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A5: after the end of the input, waiting elements get one last attempt
// immediately, and there are no further retries.

// Law A5: an element that was never started gets its first attempt, within the call
// limit, and no second attempt.
func TestEndOfInputStartsWhatWasNotStarted(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.SendEach("abc")
		r.EndInput()
		require.Equal(t, "a#1", r.Calls())
		r.Complete("a#1", "A")
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Fail("b#1", optest.ErrBroken)
		r.Complete("c#1", "C")
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		require.Equal(t, "A C", r.Outputs())
		require.Zero(t, r.Stats().Retries())
		require.Zero(t, r.Stats().WaitingForRetry)
	})
}

// Law A5: an element in back-off gets exactly one more attempt, immediately. The outcome
// of that attempt is final.
func TestEndOfInputRetriesWhatIsInBackoffOnce(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, 10*time.Second), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken)
		r.Complete("c#1")
		r.Advance(time.Second)
		r.EndInput()
		require.Equal(t, "a#1@0s b#1@0s c#1@0s a#2@1s b#2@1s c#2@1s", r.CallTimes())
		r.Complete("a#2", "A")
		r.Fail("b#2", optest.ErrBroken) // would be retried
		r.Complete("c#2")               // would be retried
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1 b#1 c#1 a#2 b#2 c#2", r.Calls())
		require.Equal(t, "A", r.Outputs())
	})
}

// Law A5: this holds even if the strategy would refuse a further attempt, because it
// allowed this attempt when the back-off began.
func TestEndOfInputUsesUpTheRetryThatWasAllowed(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		require.Equal(t, "a#1 a#2", r.Calls())
		r.Fail("a#2", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Equal(t, "a#1 a#2", r.Calls())
	})
}

// Law A5: an element whose retry could not start before its deadline counts as in
// back-off.
func TestEndOfInputRetriesACappedWait(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, time.Hour)})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(500 * time.Millisecond)
		r.EndInput()
		require.Equal(t, "a#1@0s a#2@500ms", r.CallTimes())
		r.Complete("a#2", "A")
		require.NoError(t, r.Wait())
		require.Equal(t, "A", r.Outputs())
	})
}

// Law A5: a running attempt, even if it is a retry, is awaited and not called a second
// time. Its outcome is final.
func TestEndOfInputAwaitsRunningAttempts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, 0), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.SendEach("abc")
		r.Fail("b#1", optest.ErrBroken)
		r.Fail("c#1", optest.ErrBroken)
		r.EndInput()
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1 b#1 c#1 b#2 c#2", r.Calls())
		r.Complete("a#1", "A")
		r.Complete("b#2", "B")
		r.Fail("c#2", optest.ErrBroken) // not retried
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1 b#1 c#1 b#2 c#2", r.Calls())
		require.Equal(t, "A B", r.Outputs())
	})
}

// Law A5: a retry that is due but waits for a permit gets its one attempt when there is
// one.
func TestEndOfInputWithARetryThatWaitsForAPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.SendEach("b")
		r.Advance(time.Second) // a is due, b has the permit
		r.EndInput()
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1", "B")
		require.Equal(t, "a#1 b#1 a#2", r.Calls())
		r.Complete("a#2")
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1 b#1 a#2", r.Calls())
		require.Equal(t, "B", r.Outputs())
	})
}

// Law A5: the last attempts respect the call limit. Retries go before first attempts,
// oldest first.
func TestEndOfInputKeepsTheCallLimit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		for _, e := range []string{"a", "b", "c"} {
			r.SendEach(e)
			r.Fail(e+"#1", optest.ErrBroken)
			r.Advance(time.Millisecond)
		}
		r.SendEach("xf") // x runs
		r.EndInput()
		r.Complete("x#1")
		for _, name := range []string{"a#2", "b#2", "c#2", "f#1"} {
			require.Regexp(t, name+"$", r.Calls())
			r.Complete(name)
		}
		require.NoError(t, r.Wait())
	})
}

// Law A5: deadlines apply while the operator drains.
func TestTimeoutsFireWhileDraining(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, time.Minute), Wrap: optest.Handled})
		r.SendEach("a")
		r.Advance(time.Millisecond)
		r.SendEach("b")
		r.Fail("b#1", optest.ErrBroken)
		r.EndInput()
		r.Advance(time.Second)
		require.NoError(t, r.Wait())
		require.Equal(t, "a!@1s b!@1.001s", r.OutputTimes())
	})
}

// The end of the input is noticed when there is a free slot for the next element.
func TestEndOfInputIsNoticedWhenASlotIsFree(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 2
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAll(9, time.Minute)})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1", "B")
		require.Equal(t, m.Pick("a#1 b#1", "a#1 b#1 a#2"), r.Calls(), "in order, b waits in its slot for a")
		r.Advance(time.Minute)
		r.Complete("a#2", "A")
		require.NoError(t, r.Wait())
		require.Equal(t, m.Pick("A B", "B A"), r.Outputs())
	})
}

// With WithDrainRetries, waiting retries and the retries after them run to their end.
func TestWithDrainRetries(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, 10*time.Second), Opts: optest.Options(asyncop.WithDrainRetries()),
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1") // b's first back-off begins after the end
		r.Advance(10 * time.Second)
		r.Complete("a#2")
		r.Complete("b#2", "B")
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s a#2@10s b#2@10s a#3@20s", r.CallTimes())
		r.Complete("a#3", "A")
		require.NoError(t, r.Wait())
		require.Equal(t, m.Pick("A B", "B A"), r.Outputs())
	})
}

// Law A5: with WithDrainRetries, an element that waits for its deadline continues to
// wait.
func TestWithDrainRetries_AwaitsTheDeadline(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(3, 10*time.Second), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithDrainRetries()),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		r.Advance(time.Second)
		require.NoError(t, r.Wait())
		require.Equal(t, "a#1", r.Calls())
		require.Equal(t, "a!@1s", r.OutputTimes())
	})
}

// An empty input ends an operator that never had an element.
func TestEndOfEmptyInput(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(1, 0)})
		require.NoError(t, r.End())
		require.Equal(t, asyncop.Stats{}, r.Stats())
	}, 1, 16)
}

// ---- A5: no attempt starts at or after the deadline

// Law A5: an element that has waited for a permit until its deadline is not called,
// neither after the deadline nor exactly at it.
func TestAttempt_NotStartedAtTheDeadline(t *testing.T) {
	for _, away := range []time.Duration{500 * time.Millisecond, 600 * time.Millisecond} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Second, Strategy: optest.RetryAll(9, 100*time.Millisecond), Wrap: optest.Handled,
				Opts: optest.Options(asyncop.WithMaxConcurrentCalls(3)),
			})
			r.SendEach("rab")
			r.Fail("r#1", optest.ErrBroken)
			r.SendEach("xcd") // r's retry waits for a permit, c and d for their first attempt
			r.Script("r#2", func(*optest.Call) error { time.Sleep(away); return nil })
			r.Advance(500 * time.Millisecond)
			a, b := r.Call("a#1"), r.Call("b#1")
			a.Complete("A")
			b.Complete("B") // permits for r and c, but r keeps the loop busy until the deadline
			r.Advance(time.Second)
			require.Equal(t, "r#1@0s a#1@0s b#1@0s x#1@0s r#2@500ms", r.CallTimes())
			require.EqualValues(t, 4, r.Stats().Timeouts)
			require.NoError(t, r.End())
		})
	}
}

// ---- A5: no attempt starts after a cancel

// Law A5: after a cancel an element is not called, whatever its phase was.
func TestCancel_NoAttemptAfterIt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.InEveryPhase(t, m, side)
		before := r.Calls()
		r.Cancel(optest.ErrTestOver)
		r.Advance(time.Minute)
		r.EndInput()
		r.Advance(time.Minute)
		require.Equal(t, before, r.Calls())
		side.Unblock()
		require.Error(t, r.Wait())
	})
}

// Law A5: no attempt starts after a failure either.
func TestFailure_NoAttemptAfterIt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := strategies.FixedDelay[string](9, time.Second).RetryIfException(predicates.ErrorIs(optest.ErrBroken))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithMaxConcurrentCalls(3))})
		r.SendEach("abcf")
		r.Fail("b#1", optest.ErrBroken)
		require.Equal(t, "a#1 b#1 c#1 f#1", r.Calls())
		r.Fail("c#1", context.Canceled)
		r.Advance(time.Minute)
		require.ErrorIs(t, r.Wait(), context.Canceled)
		require.Equal(t, "a#1 b#1 c#1 f#1", r.Calls())
	})
}

// Law A5: attempts that wait for the permit which the failure releases do not start
// either.
func TestFailure_NoWaitingAttemptAfterIt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1))})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Equal(t, "a#1", r.Calls())
	})
}

// Law A5: elements that would be accepted or started in the step in which the operator is
// cancelled are not called.
func TestCancel_NoAttemptInItsStep(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("a#1", func(*optest.Call) error {
			time.Sleep(time.Second)
			r.Cancel(optest.ErrTestOver)
			return nil
		})
		r.Op.In() <- "a"
		synctest.Wait()
		r.Op.In() <- "b"
		r.Op.In() <- "c"
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Equal(t, "a#1", r.Calls())
	})
}

// Law A5: the same for elements that wait for permits.
func TestCancel_NoWaitingAttemptInItsStep(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(2)),
		})
		r.SendEach("abcd")
		r.Script("c#1", func(*optest.Call) error { r.Cancel(optest.ErrTestOver); return nil })
		a, b := r.Call("a#1"), r.Call("b#1")
		a.Complete("A")
		b.Complete("B") // two permits for c and d
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
	})
}

// Law A5: an operator that was cancelled before its first element makes no call.
func TestOperatorCancelledBeforeItBegan(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(optest.ErrTestOver)
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithContext(ctx))})
		r.SendEach("ab")
		require.Equal(t, optest.ErrTestOver, r.Wait())
		require.Empty(t, r.Calls())
		r.EndInput()
		require.EqualValues(t, 2, r.Stats().Discarded)
	})
}

// ---- Retries that the end of the input cuts are reported.

// lateRows returns no result at first, and the element on its third attempt.
func lateRows(c *optest.Call) error {
	if c.Attempt < 3 {
		return optest.Empty(c)
	}
	return optest.Upper(c)
}

// A finite input whose results come late: the operator cuts the retries, as Flink does,
// counts the elements, and logs it once.
func TestCutRetriesAreToldOf(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: optest.WithoutTime}))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second), Opts: optest.Options(asyncop.WithLogger(logger))})
		r.Answer = lateRows
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Empty(t, r.Outputs())
		require.Equal(t, "a#1 b#1 c#1 a#2 b#2 c#2", r.Calls())
		require.EqualValues(t, 3, r.Stats().CutByEndOfInput)
		require.EqualValues(t, 3, r.Stats().Exhausted)
		require.Equal(t, `level=WARN msg="asyncop: the input ended while elements still asked for a retry, which they did not get; `+
			`WithDrainRetries lets retries continue" elements=3`+"\n", b.String())
	})
}

// With WithDrainRetries, retries are not cut, and the log stays empty.
func TestDrainedRetriesAreNotCut(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var b bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: optest.WithoutTime}))
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second),
			Opts: optest.Options(asyncop.WithLogger(logger), asyncop.WithDrainRetries()),
		})
		r.Answer = lateRows
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "A B C", r.Outputs())
		require.Zero(t, r.Stats().CutByEndOfInput)
		require.Empty(t, b.String())
	})
}

// Retries that the strategy itself would refuse do not count as cut by the end of the
// input.
func TestSpentRetriesAreNotCut(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
		r.Answer = lateRows
		r.SendEach("a")
		require.NoError(t, r.End())
		require.Equal(t, "a#1 a#2", r.Calls())
		require.EqualValues(t, 1, r.Stats().Exhausted)
		require.Zero(t, r.Stats().CutByEndOfInput)
	})
}

// The input of Results is usually finite, and its end is no reason to give up results, so
// retries run to their end.
func TestResultsDrainsRetries(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		h := optest.NewHand(t)
		h.Answer = lateRows
		op := optest.Construct[string, string](m, h, time.Minute, optest.RetryAll(3, time.Second), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		got := ""
		for out, err := range op.Results(optest.Letters("abc")) {
			require.NoError(t, err)
			got += out
		}
		require.Equal(t, "ABC", got)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s a#2@1s b#2@1s c#2@1s a#3@2s b#3@2s c#3@2s", h.CallTimes())
	})
}
