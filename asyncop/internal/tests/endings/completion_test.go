package endings_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Law A1: every accepted element ends exactly once.

// Law A1: all its results are emitted, if it has any.
func TestElementEmitsAllItsResultsOrNone(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abc")
		r.Complete("a#1")
		r.Complete("b#1", "B1", "B2", "B3")
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.Equal(t, "B1 B2 B3 C", r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 3, s.Completed)
		require.EqualValues(t, 4, s.Emitted)
		optest.CheckBalance(t, s)
	})
}

// Law A1: elements end in different ways, each exactly once.
func TestElementsEndInOneWay(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(1, 10*time.Millisecond),
			Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.SendEach("abcd") // a: result, b: fails for good, c: second attempt, d: times out
		r.Complete("a#1", "A")
		r.Fail("b#1", optest.ErrBroken)
		r.Fail("c#1", optest.ErrBroken)
		r.Advance(10 * time.Millisecond)
		r.Fail("b#2", optest.ErrBroken)
		r.Complete("c#2", "C")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "A C", r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 4, s.Accepted)
		require.EqualValues(t, 2, s.Completed)
		require.EqualValues(t, 2, s.Dropped)
		require.EqualValues(t, 1, s.Timeouts)
		require.Zero(t, s.InFlight)
		optest.CheckBalance(t, s)
	})
}

const allPhases = "handling failing done ready backoff running1 running2 fresh"

// Law A1: elements in any phase that the end of the run cuts off are abandoned: they are
// counted, reported by Err, and sent to the side output with the reason.
func TestCancelAbandonsWhatIsInFlight(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.InEveryPhase(t, m, side)
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		side.Unblock()
		err := r.Wait()

		require.ErrorIs(t, err, optest.ErrTestOver)
		abandoned, ok := errors.AsType[*asyncop.AbandonedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 7, abandoned.Abandoned)
		require.Contains(t, err.Error(), "7 elements")
		require.Empty(t, r.Outputs())

		require.Equal(t, allPhases, side.Elements())
		for _, f := range side.Got() {
			require.Equal(t, f.Element != "failing", f.Abandoned, f.Element)
			if f.Element == "failing" {
				require.EqualError(t, f.Err, "not retried")
			} else {
				require.ErrorIs(t, f.Err, optest.ErrTestOver, f.Element)
			}
		}
		s := r.Stats()
		require.EqualValues(t, 7, s.Abandoned)
		require.EqualValues(t, 1, s.HandedOver)
		require.Zero(t, s.InFlight)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Running)
		optest.CheckBalance(t, s)
	})
}

// Law A1: the same applies when an element fails the pipeline. Its error reports the
// number of the others.
func TestFailureAbandonsTheOthers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abc")
		r.Fail("b#1", optest.ErrBroken)
		err := r.Wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "b", failed.Element)
		require.Equal(t, 2, failed.Abandoned)
		require.Contains(t, err.Error(), "2 other elements")
		s := r.Stats()
		require.EqualValues(t, 1, s.Failed)
		require.EqualValues(t, 2, s.Abandoned)
		require.Zero(t, s.InFlight)
		optest.CheckBalance(t, s)
	})
}

// Law A1: an element that completed without a result has ended and is not abandoned, even
// if it has not left its slot yet.
func TestElementWithoutResultIsNotAbandoned(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("ab")
		r.Complete("b#1")
		err := r.Cut(optest.ErrTestOver)
		require.ErrorIs(t, err, optest.ErrTestOver)
		s := r.Stats()
		require.EqualValues(t, 1, s.Abandoned)
		require.EqualValues(t, 1, s.Completed)
		require.Zero(t, s.InFlight)
		optest.CheckBalance(t, s)
	})
}

// Law A1: if no element is in flight, Err is the cause itself.
func TestCancelOfAnIdleOperatorAbandonsNothing(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Answer = optest.Upper
		r.SendEach("ab")
		require.Equal(t, optest.ErrTestOver, r.Cut(optest.ErrTestOver))
		require.Equal(t, "A B", r.Outputs())
		require.Zero(t, r.Stats().Abandoned)
	})
}

// ---- Law A2: the first completion of the current attempt counts.

// Law A2: later completions of an attempt that was completed change nothing and are
// counted.
func TestSecondCompletionIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("ab")
		r.Call("a#1").Complete("first")
		r.Call("a#1").Complete("second") // in the same step
		r.Complete("a#1", "third")       // after the element has left
		r.Fail("a#1", optest.ErrBroken)
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Equal(t, "first B", r.Outputs())
		require.EqualValues(t, 3, r.Stats().LateCompletions)
	})
}

// Law A2: the same where the first completion is an error.
func TestResultAfterAnErrorIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.SendEach("a")
		r.Call("a#1").CompleteExceptionally(optest.ErrBroken)
		r.Call("a#1").Complete("A")
		require.NoError(t, r.End())
		require.Empty(t, r.Outputs())
		require.EqualValues(t, 1, r.Stats().LateCompletions)
	})
}

// Law A2: completions of an attempt that was retried do not count, neither while the next
// attempt waits nor while it runs.
func TestCompletionOfAnEarlierAttemptIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second)})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Complete("a#1", "of attempt 1, in back-off")
		require.Equal(t, "a#1", r.Calls())
		r.Advance(time.Second)
		r.Complete("a#1", "of attempt 1, while attempt 2 runs")
		r.Fail("a#1", optest.ErrBroken)
		require.Empty(t, r.Outputs())
		require.Equal(t, "a#1 a#2", r.Calls())
		r.Complete("a#2", "of attempt 2")
		require.NoError(t, r.End())
		require.Equal(t, "of attempt 2", r.Outputs())
		require.EqualValues(t, 3, r.Stats().LateCompletions)
	})
}

// Law A2: an attempt that has timed out has ended, and the next attempt is the current
// one.
func TestCompletionOfATimedOutAttemptIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, 0), Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("a")
		r.Advance(time.Second)
		require.Equal(t, "a#1@0s a#2@1s", r.CallTimes())
		r.Complete("a#1", "late")
		require.Empty(t, r.Outputs())
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A", r.Outputs())
		require.EqualValues(t, 1, r.Stats().LateCompletions)
	})
}

// Law A2: after the timeout, and while the timeout handler runs.
func TestCompletionAfterTheTimeoutIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		answer := make(chan struct{})
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) {
				<-answer
				return []string{"handled"}, nil
			})
		}})
		r.SendEach("a")
		r.Advance(time.Second)
		r.Complete("a#1", "while the handler runs")
		close(answer)
		r.Complete("a#1", "after it")
		require.NoError(t, r.End())
		require.Equal(t, "handled", r.Outputs())
		require.EqualValues(t, 2, r.Stats().LateCompletions)
	})
}

// Law A2: after the operator's end, on a failed element and on an abandoned element.
func TestCompletionAfterTheEndIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		require.Error(t, r.Wait())
		r.Complete("a#1", "A")
		r.Complete("b#1", "B")
		r.Fail("b#1", optest.ErrBroken)
		require.Empty(t, r.Outputs())
		require.EqualValues(t, 3, r.Stats().LateCompletions)
	})
}

// Law A2: a completion that was posted but not handled before the operator ended is late,
// too.
func TestCompletionInTheStepOfTheEndIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("ab")
		a := r.Call("a#1")
		r.Script("x#1", func(c *optest.Call) error { // the loop is busy
			c.CompleteExceptionally(optest.ErrBroken)
			a.Complete("A")
			a.Complete("again")
			return nil
		})
		r.Op.In() <- "x"
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Empty(t, r.Outputs())
		require.EqualValues(t, 2, r.Stats().Abandoned)
		require.EqualValues(t, 2, r.Stats().LateCompletions)
	})
}

// Law A2: slots are reused. A late completion of an element that has left does not reach
// its successor.
func TestLateCompletionDoesNotReachTheNextElementInTheSlot(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.SendEach("a")
		r.Complete("a#1", "A")
		r.SendEach("b") // b has a's slot
		r.Advance(time.Second)
		r.SendEach("c") // c has the slot in which b timed out
		r.Complete("a#1", "late a")
		r.Complete("b#1", "late b")
		require.Equal(t, "A", r.Outputs())
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.Equal(t, "A C", r.Outputs())
		require.EqualValues(t, 2, r.Stats().LateCompletions)
	}, 1)
}

// Law A2: an error or a panic after the attempt was completed comes too late (law A6).
func TestErrorOrPanicAfterCompletionIsLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("a#1", func(c *optest.Call) error { _ = optest.Upper(c); return optest.ErrBroken })
		r.Script("b#1", func(c *optest.Call) error { _ = optest.Upper(c); panic("late") })
		r.Script("c#1", func(c *optest.Call) error { c.Complete("C"); c.Complete("late"); return nil })
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "A B C", r.Outputs())
		require.EqualValues(t, 3, r.Stats().LateCompletions)
	})
}

// Law A2: of any number of concurrent completions, exactly one counts. The test does not
// run in a bubble, so that real goroutines race.
func TestConcurrentCompletionsCountOnce(t *testing.T) {
	const elements, racers = 200, 4
	var wg sync.WaitGroup
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		for range racers {
			wg.Go(func() { result.Complete(in) })
		}
		return nil
	})
	op := asyncop.OrderedWait(fn, time.Minute, 16)
	go func() {
		defer close(op.In())
		for i := range elements {
			op.In() <- i
		}
	}()
	want := 0
	for v := range op.Out() {
		require.Equal(t, want, v)
		want++
	}
	require.NoError(t, op.Wait())
	wg.Wait()
	require.Equal(t, elements, want)
	require.EqualValues(t, elements*(racers-1), op.Stats().LateCompletions)
}

// Laws A2, A3: completions that race the timeout each either count or are late, and are
// counted. The test does not run in a bubble.
func TestCompletionsThatRaceTheTimeout(t *testing.T) {
	const elements, timeout = 3000, 300 * time.Microsecond
	var wg sync.WaitGroup
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		wg.Add(1)
		time.AfterFunc(timeout, func() { defer wg.Done(); result.Complete(in) })
		return nil
	})
	op := asyncop.UnorderedWait(fn, timeout, 64, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	go func() {
		defer close(op.In())
		for i := range elements {
			op.In() <- i
		}
	}()
	emitted := len(optest.Drain(op))
	require.NoError(t, op.Wait())
	wg.Wait()
	s := op.Stats()
	require.EqualValues(t, elements, s.Accepted)
	require.EqualValues(t, emitted, s.Completed)
	require.EqualValues(t, s.Attempts-s.Completed, s.LateCompletions)
	require.Zero(t, s.Running)
	optest.CheckBalance(t, s)
}

// A nil error counts as an error, too, with a name.
func TestNilErrorIsAnError(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("a")
		r.Fail("a#1", nil)
		require.ErrorContains(t, r.Wait(), "asyncop: CompleteExceptionally was called with a nil error")
	})
}

// A slice that is passed whole belongs to weir, which does not copy it. All its results
// are emitted.
func TestCompleteWithManyResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		results := strings.Fields(strings.Repeat("x ", 500)) // more than a step emits, more than the buffer holds
		r.SendEach("a")
		r.Complete("a#1", results...)
		require.NoError(t, r.End())
		require.Equal(t, strings.Join(results, " "), r.Outputs())
	})
}
