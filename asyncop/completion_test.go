package asyncop_test

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
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A1: every accepted element ends exactly once.

// A1: its results are emitted, possibly none.
func TestElementEmitsAllItsResultsOrNone(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("abc")
		r.complete("a#1")
		r.complete("b#1", "B1", "B2", "B3")
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.Equal(t, "B1 B2 B3 C", r.outputs())
		s := r.stats()
		require.EqualValues(t, 3, s.Completed)
		require.EqualValues(t, 4, s.Emitted)
		checkBalance(t, s)
	})
}

// A1: a mixture of ends, each element with exactly one.
func TestElementsEndInOneWay(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(1, 10*time.Millisecond),
			opts: options(asyncop.WithDropOnFailure()),
		})
		r.sendEach("abcd") // a: result, b: fails for good, c: second attempt, d: times out
		r.complete("a#1", "A")
		r.fail("b#1", errBroken)
		r.fail("c#1", errBroken)
		r.advance(10 * time.Millisecond)
		r.fail("b#2", errBroken)
		r.complete("c#2", "C")
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "A C", r.outputs())
		s := r.stats()
		require.EqualValues(t, 4, s.Accepted)
		require.EqualValues(t, 2, s.Completed)
		require.EqualValues(t, 2, s.Dropped)
		require.EqualValues(t, 1, s.Timeouts)
		require.Zero(t, s.InFlight)
		checkBalance(t, s)
	})
}

// inEveryPhase returns a rig with one element in each phase, named after it, under a failure sink that takes nothing.
func inEveryPhase(t *testing.T, m mode, side *sideSink) *rig {
	t.Helper()
	r := newRig(t, m, setup{
		timeout:  10 * time.Second,
		strategy: strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.ErrorIs(errBroken)),
		blocked:  true,
		wrap: func(h *hand) function {
			return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		},
		opts: options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(2), asyncop.WithFailureSink(side.take)),
	})
	r.send("handling")
	r.advance(10 * time.Second)
	r.send("failing", "done")
	r.fail("failing#1", errors.New("not retried"))
	r.complete("done#1", "D")
	r.send("ready", "backoff")
	r.fail("ready#1", errBroken)
	r.advance(900 * time.Millisecond)
	r.fail("backoff#1", errBroken)
	r.send("running1", "running2", "fresh")
	r.advance(100 * time.Millisecond)
	require.Equal(t, "handling#1 failing#1 done#1 ready#1 backoff#1 running1#1 running2#1", r.calls())
	return r
}

const allPhases = "handling failing done ready backoff running1 running2 fresh"

// A1: what the end of the run cuts off is abandoned, in whatever phase it is: counted, told by Err, and sent to the side
// output with the reason.
func TestCancelAbandonsWhatIsInFlight(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := inEveryPhase(t, m, side)
		r.cancel(errTestOver)
		synctest.Wait()
		side.unblock()
		err := r.wait()

		require.ErrorIs(t, err, errTestOver)
		abandoned, ok := errors.AsType[*asyncop.AbandonedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 7, abandoned.Abandoned)
		require.Contains(t, err.Error(), "7 elements")
		require.Empty(t, r.outputs())

		require.Equal(t, allPhases, side.elements())
		for _, f := range side.got() {
			require.Equal(t, f.Element != "failing", f.Abandoned, f.Element)
			if f.Element == "failing" {
				require.EqualError(t, f.Err, "not retried")
			} else {
				require.ErrorIs(t, f.Err, errTestOver, f.Element)
			}
		}
		s := r.stats()
		require.EqualValues(t, 7, s.Abandoned)
		require.EqualValues(t, 1, s.HandedOver)
		require.Zero(t, s.InFlight)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Running)
		checkBalance(t, s)
	})
}

// A1: the same when an element fails the pipeline: its error tells of the others.
func TestFailureAbandonsTheOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("abc")
		r.fail("b#1", errBroken)
		err := r.wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "b", failed.Element)
		require.Equal(t, 2, failed.Abandoned)
		require.Contains(t, err.Error(), "2 other elements")
		s := r.stats()
		require.EqualValues(t, 1, s.Failed)
		require.EqualValues(t, 2, s.Abandoned)
		require.Zero(t, s.InFlight)
		checkBalance(t, s)
	})
}

// A1: an element that completed with nothing has ended, even if it has not left its slot yet; it is not abandoned.
func TestElementWithoutResultIsNotAbandoned(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("ab")
		r.complete("b#1")
		err := r.cut(errTestOver)
		require.ErrorIs(t, err, errTestOver)
		s := r.stats()
		require.EqualValues(t, 1, s.Abandoned)
		require.EqualValues(t, 1, s.Completed)
		require.Zero(t, s.InFlight)
		checkBalance(t, s)
	})
}

// A1: with nothing in flight, Err is the cause itself.
func TestCancelOfAnIdleOperatorAbandonsNothing(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.answer = upper
		r.sendEach("ab")
		require.Equal(t, errTestOver, r.cut(errTestOver))
		require.Equal(t, "A B", r.outputs())
		require.Zero(t, r.stats().Abandoned)
	})
}

// ---- Law A2: the first completion of the current attempt counts.

// A2: what an attempt says after it was completed changes nothing, and is counted.
func TestSecondCompletionIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("ab")
		r.call("a#1").Complete("first")
		r.call("a#1").Complete("second") // in the same turn
		r.complete("a#1", "third")       // after the element has left
		r.fail("a#1", errBroken)
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Equal(t, "first B", r.outputs())
		require.EqualValues(t, 3, r.stats().LateCompletions)
	})
}

// A2: the same where the first completion is an error.
func TestResultAfterAnErrorIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithDropOnFailure())})
		r.sendEach("a")
		r.call("a#1").CompleteExceptionally(errBroken)
		r.call("a#1").Complete("A")
		require.NoError(t, r.end())
		require.Empty(t, r.outputs())
		require.EqualValues(t, 1, r.stats().LateCompletions)
	})
}

// A2: an attempt that was retried has lost its voice: while the next one waits, and while it runs.
func TestCompletionOfAnEarlierAttemptIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(3, time.Second)})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.complete("a#1", "of attempt 1, in back-off")
		require.Equal(t, "a#1", r.calls())
		r.advance(time.Second)
		r.complete("a#1", "of attempt 1, while attempt 2 runs")
		r.fail("a#1", errBroken)
		require.Empty(t, r.outputs())
		require.Equal(t, "a#1 a#2", r.calls())
		r.complete("a#2", "of attempt 2")
		require.NoError(t, r.end())
		require.Equal(t, "of attempt 2", r.outputs())
		require.EqualValues(t, 3, r.stats().LateCompletions)
	})
}

// A2: an attempt that ran out of its own time is over, and the next one is the current one.
func TestCompletionOfATimedOutAttemptIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, 0), opts: options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("a")
		r.advance(time.Second)
		require.Equal(t, "a#1@0s a#2@1s", r.callTimes())
		r.complete("a#1", "late")
		require.Empty(t, r.outputs())
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A", r.outputs())
		require.EqualValues(t, 1, r.stats().LateCompletions)
	})
}

// A2: after the timeout, and while the timeout handler runs.
func TestCompletionAfterTheTimeoutIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		answer := make(chan struct{})
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return timeoutMethod(h, func(context.Context, string) ([]string, error) {
				<-answer
				return []string{"handled"}, nil
			})
		}})
		r.sendEach("a")
		r.advance(time.Second)
		r.complete("a#1", "while the handler runs")
		close(answer)
		r.complete("a#1", "after it")
		require.NoError(t, r.end())
		require.Equal(t, "handled", r.outputs())
		require.EqualValues(t, 2, r.stats().LateCompletions)
	})
}

// A2: after the operator's end, on a failed element and on an abandoned one.
func TestCompletionAfterTheEndIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		require.Error(t, r.wait())
		r.complete("a#1", "A")
		r.complete("b#1", "B")
		r.fail("b#1", errBroken)
		require.Empty(t, r.outputs())
		require.EqualValues(t, 3, r.stats().LateCompletions)
	})
}

// A2: a completion that was handed in, but found no ear before the operator ended, is late, too.
func TestCompletionInTheTurnOfTheEndIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("ab")
		a := r.call("a#1")
		r.script("x#1", func(c *call) error { // the loop is away
			c.CompleteExceptionally(errBroken)
			a.Complete("A")
			a.Complete("again")
			return nil
		})
		r.op.In() <- "x"
		require.ErrorIs(t, r.wait(), errBroken)
		require.Empty(t, r.outputs())
		require.EqualValues(t, 2, r.stats().Abandoned)
		require.EqualValues(t, 2, r.stats().LateCompletions)
	})
}

// A2: slots are used again; whoever still holds the future of an element that left does not reach its successor.
func TestLateCompletionDoesNotReachTheNextElementInTheSlot(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, opts: options(asyncop.WithDropOnFailure())})
		r.sendEach("a")
		r.complete("a#1", "A")
		r.sendEach("b") // b has a's slot
		r.advance(time.Second)
		r.sendEach("c") // and c the one in which b timed out
		r.complete("a#1", "late a")
		r.complete("b#1", "late b")
		require.Equal(t, "A", r.outputs())
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.Equal(t, "A C", r.outputs())
		require.EqualValues(t, 2, r.stats().LateCompletions)
	}, 1)
}

// A2: an error or a panic after the attempt was completed comes too late (A6).
func TestErrorOrPanicAfterCompletionIsLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("a#1", func(c *call) error { _ = upper(c); return errBroken })
		r.script("b#1", func(c *call) error { _ = upper(c); panic("late") })
		r.script("c#1", func(c *call) error { c.Complete("C"); c.Complete("late"); return nil })
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "A B C", r.outputs())
		require.EqualValues(t, 3, r.stats().LateCompletions)
	})
}

// A2: of any number of completions at once, exactly one counts. Outside of a bubble: real goroutines race.
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

// A2, A3: completions that race the timeout: each either counts or is late, and is counted. Not in a bubble.
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
	emitted := len(drain(op))
	require.NoError(t, op.Wait())
	wg.Wait()
	s := op.Stats()
	require.EqualValues(t, elements, s.Accepted)
	require.EqualValues(t, emitted, s.Completed)
	require.EqualValues(t, s.Attempts-s.Completed, s.LateCompletions)
	require.Zero(t, s.Running)
	checkBalance(t, s)
}

// A nil error is an error too, a named one.
func TestNilErrorIsAnError(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("a")
		r.fail("a#1", nil)
		require.ErrorContains(t, r.wait(), "asyncop: CompleteExceptionally was called with a nil error")
	})
}

// A slice that is passed whole belongs to weir; nothing is copied, and nothing is lost.
func TestCompleteWithManyResults(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		results := strings.Fields(strings.Repeat("x ", 500)) // more than a turn emits, more than the buffer holds
		r.sendEach("a")
		r.complete("a#1", results...)
		require.NoError(t, r.end())
		require.Equal(t, strings.Join(results, " "), r.outputs())
	})
}
