package retry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A4: attempts count from 1; maxRetries retries are maxRetries+1 calls.

// A4, for errors and for results, with and without a delay.
func TestMaxRetriesAllowsOneCallMore(t *testing.T) {
	for _, maxRetries := range []int{0, 1, 3} {
		for _, delay := range []time.Duration{0, time.Second} {
			for name, answer := range map[string]func(*optest.Call) error{"error": optest.Fails, "empty": optest.Empty} {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					r := optest.NewRig(t, m, optest.Setup{
						Timeout: time.Minute, Strategy: optest.RetryAll(maxRetries, delay),
						Opts: optest.Options(asyncop.WithDropOnFailure()),
					})
					r.Answer = answer
					r.SendEach("a")
					r.Advance(30 * time.Second)
					var want []string
					for n := range maxRetries + 1 {
						want = append(want, fmt.Sprintf("a#%d@%v", n+1, time.Duration(n)*delay))
					}
					require.Equal(t, strings.Join(want, " "), r.CallTimes(), name)
					s := r.Stats()
					require.EqualValues(t, maxRetries+1, s.Attempts)
					require.EqualValues(t, maxRetries, s.Retries())
					require.EqualValues(t, 1, s.Exhausted)
					require.Zero(t, s.InFlight)
				})
			}
		}
	}
}

// countingStrategy records its calls.
type countingStrategy struct {
	asked []string
	last  int // the last attempt after which it allows a retry
}

func (s *countingStrategy) CanRetry(attempts int) bool {
	s.asked = append(s.asked, fmt.Sprintf("can %d", attempts))
	return attempts <= s.last
}

func (s *countingStrategy) BackoffTime(attempts int) time.Duration {
	s.asked = append(s.asked, fmt.Sprintf("wait %d", attempts))
	return time.Duration(attempts) * time.Second
}

func (s *countingStrategy) RetryPredicate() predicates.AsyncRetryPredicate[string] {
	s.asked = append(s.asked, "predicate")
	return predicates.RetryIf(predicates.EmptyResult[string], predicates.HasException)
}

// Law A4: a user's strategy is called with the number of attempts made, from 1. Its
// predicate is read once.
func TestStrategyIsAskedWithTheAttemptsMade(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := &countingStrategy{last: 2}
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(30 * time.Second)
		require.Equal(t, []string{"predicate", "can 1", "wait 1", "can 2", "wait 2", "can 3"}, s.asked)
		require.Equal(t, "a#1@0s a#2@1s a#3@3s", r.CallTimes())
	})
}

// The strategy is not called for outcomes that the predicate does not match.
func TestStrategyIsNotAskedWithoutNeed(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := &countingStrategy{last: 9}
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
		r.Answer = optest.Upper
		r.SendEach("ab")
		require.NoError(t, r.End())
		require.Equal(t, []string{"predicate"}, s.asked)
	})
}

// Each kind of outcome has its predicate. Without a predicate, outcomes of the kind are
// never retried.
func TestPredicatesSeeTheirKindOfOutcome(t *testing.T) {
	onEmpty := strategies.FixedDelay[string](1, 0).RetryIfResult(predicates.EmptyResult)
	onError := strategies.FixedDelay[string](1, 0).RetryIfException(predicates.ErrorIs(optest.ErrBroken))
	for _, c := range []struct {
		strategy optest.Strategy
		answer   func(*optest.Call) error
		calls    string
	}{
		{onEmpty, optest.Empty, "a#1 a#2"},
		{onEmpty, optest.Fails, "a#1"},
		{onEmpty, optest.Upper, "a#1"},
		{onError, optest.Fails, "a#1 a#2"},
		{onError, func(*optest.Call) error { return errors.New("another") }, "a#1"},
		{onError, func(*optest.Call) error { return fmt.Errorf("wrapped: %w", optest.ErrBroken) }, "a#1 a#2"},
		{onError, optest.Empty, "a#1"},
		{strategies.FixedDelay[string](1, 0), optest.Fails, "a#1"}, // without predicates: no retry
		{strategies.NoRetry[string](), optest.Fails, "a#1"},
	} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: c.strategy, Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.Answer = c.answer
			r.SendEach("a")
			require.NoError(t, r.End())
			require.Equal(t, c.calls, r.Calls())
		})
	}
}

func TestResultPredicateSeesAllResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var seen []string
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: strategies.FixedDelay[string](3, 0).RetryIfResult(
			func(results []string) bool { seen = append(seen, strings.Join(results, "+")); return len(results) < 3 },
		)})
		r.Script("a#1", func(c *optest.Call) error { c.Complete("1", "2"); return nil })
		r.Script("a#2", func(c *optest.Call) error { c.Complete("1", "2", "3"); return nil })
		r.SendEach("a")
		require.NoError(t, r.End())
		require.Equal(t, []string{"1+2", "1+2+3"}, seen)
		require.Equal(t, "1 2 3", r.Outputs(), "only the results of the last attempt")
	})
}

// Without a bound in the strategy, retries continue until the deadline.
func TestUnlimitedRetries(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(strategies.Unlimited, 10*time.Millisecond),
			Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(2 * time.Second)
		require.EqualValues(t, 100, r.Stats().Attempts)
		require.EqualValues(t, 1, r.Stats().Timeouts)
	})
}

// Unlimited retries without delay, answered immediately, must not keep the loop from its
// other work.
func TestRetriesWithoutDelayDoNotStarveTheRest(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(strategies.Unlimited, 0), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Answer = func(c *optest.Call) error {
			if c.In != "a" {
				return optest.Upper(c)
			}
			time.Sleep(time.Millisecond) // lets the virtual time advance
			return optest.ErrBroken
		}
		r.SendEach("abc")
		r.Advance(2 * time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "B C", r.Outputs())
		require.EqualValues(t, 1, r.Stats().Timeouts)
	})
}

// Law A4: delays depend on the element's own attempt, whatever others do (Flink keeps the
// last delay in one field for all elements).
func TestExponentialBackoffOfInterleavedElements(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		s := strategies.ExponentialBackoff[string](9, 100*time.Millisecond, 300*time.Millisecond, 2).
			RetryIfException(predicates.HasException)
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(50 * time.Millisecond)
		r.SendEach("b")
		r.Advance(750 * time.Millisecond)
		require.Equal(t, "a#1@0s b#1@50ms a#2@100ms b#2@150ms a#3@300ms b#3@350ms a#4@600ms b#4@650ms", r.CallTimes())
	})
}

// ---- Exhausted retries

func TestExhaustedErrorIsAFailure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(2, time.Second)})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(2 * time.Second)
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		failed, _ := errors.AsType[*asyncop.ElementError](err)
		require.Equal(t, 3, failed.Attempts)
		require.Equal(t, 2*time.Second, failed.Elapsed)
		require.EqualValues(t, 1, r.Stats().Exhausted)
	})
}

// A result is emitted unchanged, as in Flink, and counted.
func TestExhaustedResultIsEmitted(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := strategies.FixedDelay[string](1, 0).RetryIfResult(func([]string) bool { return true })
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
		r.Script("a#1", func(c *optest.Call) error { c.Complete("of attempt 1"); return nil })
		r.Script("a#2", func(c *optest.Call) error { c.Complete("of attempt 2"); return nil })
		r.SendEach("a")
		require.NoError(t, r.End())
		require.Equal(t, "of attempt 2", r.Outputs())
		st := r.Stats()
		require.EqualValues(t, 1, st.Exhausted)
		require.EqualValues(t, 1, st.RetriesOnResult)
		require.Zero(t, st.Failures)
	})
}

// WithExhaustedAsFailure makes such an element fail instead.
func TestWithExhaustedAsFailure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, 0),
			Opts: optest.Options(asyncop.WithExhaustedAsFailure(), asyncop.WithFailureSink(side.Take)),
		})
		r.Script("a#1", optest.Empty)
		r.Script("a#2", optest.Empty)
		r.Script("b#1", optest.Fails)
		r.Script("b#2", optest.Fails)
		r.Script("c#1", optest.Fails)
		r.Script("c#2", optest.Upper)
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "C", r.Outputs())
		require.Equal(t, "a b", side.Elements())
		require.ErrorIs(t, side.Got()[0].Err, asyncop.ErrRetriesExhausted)
		require.Equal(t, optest.ErrBroken, side.Got()[1].Err, "an error stays what it is")
		require.EqualValues(t, 2, r.Stats().Exhausted)
	})
}

// An element whose last attempt, at the end of the input, has no result has exhausted its
// retries, too.
func TestWithExhaustedAsFailure_EndOfInput(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second),
			Opts: optest.Options(asyncop.WithExhaustedAsFailure(), asyncop.WithFailureSink(side.Take)),
		})
		r.Answer = optest.Empty
		r.SendEach("a")
		require.NoError(t, r.End())
		require.Equal(t, "a#1 a#2", r.Calls())
		require.Len(t, side.Got(), 1)
		require.ErrorIs(t, side.Got()[0].Err, asyncop.ErrRetriesExhausted)
		require.EqualValues(t, 1, r.Stats().Exhausted)
		synctest.Wait()
	})
}
