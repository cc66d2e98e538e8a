package asyncop_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A4: attempts count from 1; maxRetries retries are maxRetries+1 calls.

// A4, for errors and for results, with and without a delay.
func TestMaxRetriesAllowsOneCallMore(t *testing.T) {
	for _, maxRetries := range []int{0, 1, 3} {
		for _, delay := range []time.Duration{0, time.Second} {
			for name, answer := range map[string]func(*call) error{"error": fails, "empty": empty} {
				forEachMode(t, func(t *testing.T, m mode) {
					r := newRig(t, m, setup{
						timeout: time.Minute, strategy: retryAll(maxRetries, delay),
						opts: options(asyncop.WithDropOnFailure()),
					})
					r.answer = answer
					r.sendEach("a")
					r.advance(30 * time.Second)
					var want []string
					for n := range maxRetries + 1 {
						want = append(want, fmt.Sprintf("a#%d@%v", n+1, time.Duration(n)*delay))
					}
					require.Equal(t, strings.Join(want, " "), r.callTimes(), name)
					s := r.stats()
					require.EqualValues(t, maxRetries+1, s.Attempts)
					require.EqualValues(t, maxRetries, s.Retries())
					require.EqualValues(t, 1, s.Exhausted)
					require.Zero(t, s.InFlight)
				})
			}
		}
	}
}

// countingStrategy records what it is asked.
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

// A4: a user's strategy is asked with the number of attempts made, from 1; its predicate is read once.
func TestStrategyIsAskedWithTheAttemptsMade(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := &countingStrategy{last: 2}
		r := newRig(t, m, setup{timeout: time.Minute, strategy: s, opts: options(asyncop.WithDropOnFailure())})
		r.answer = fails
		r.sendEach("a")
		r.advance(30 * time.Second)
		require.Equal(t, []string{"predicate", "can 1", "wait 1", "can 2", "wait 2", "can 3"}, s.asked)
		require.Equal(t, "a#1@0s a#2@1s a#3@3s", r.callTimes())
	})
}

// The strategy is not asked about outcomes that the predicate does not match.
func TestStrategyIsNotAskedWithoutNeed(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := &countingStrategy{last: 9}
		r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
		r.answer = upper
		r.sendEach("ab")
		require.NoError(t, r.end())
		require.Equal(t, []string{"predicate"}, s.asked)
	})
}

// Each kind of outcome has its predicate; a missing one means never.
func TestPredicatesSeeTheirKindOfOutcome(t *testing.T) {
	onEmpty := strategies.FixedDelay[string](1, 0).RetryIfResult(predicates.EmptyResult)
	onError := strategies.FixedDelay[string](1, 0).RetryIfException(predicates.ErrorIs(errBroken))
	for _, c := range []struct {
		strategy strategy
		answer   func(*call) error
		calls    string
	}{
		{onEmpty, empty, "a#1 a#2"},
		{onEmpty, fails, "a#1"},
		{onEmpty, upper, "a#1"},
		{onError, fails, "a#1 a#2"},
		{onError, func(*call) error { return errors.New("another") }, "a#1"},
		{onError, func(*call) error { return fmt.Errorf("wrapped: %w", errBroken) }, "a#1 a#2"},
		{onError, empty, "a#1"},
		{strategies.FixedDelay[string](1, 0), fails, "a#1"}, // without predicates: no retry
		{strategies.NoRetry[string](), fails, "a#1"},
	} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, strategy: c.strategy, opts: options(asyncop.WithDropOnFailure())})
			r.answer = c.answer
			r.sendEach("a")
			require.NoError(t, r.end())
			require.Equal(t, c.calls, r.calls())
		})
	}
}

// The result predicate sees all results of the attempt at once.
func TestResultPredicateSeesAllResults(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var seen []string
		r := newRig(t, m, setup{timeout: time.Minute, strategy: strategies.FixedDelay[string](3, 0).RetryIfResult(
			func(results []string) bool { seen = append(seen, strings.Join(results, "+")); return len(results) < 3 },
		)})
		r.script("a#1", func(c *call) error { c.Complete("1", "2"); return nil })
		r.script("a#2", func(c *call) error { c.Complete("1", "2", "3"); return nil })
		r.sendEach("a")
		require.NoError(t, r.end())
		require.Equal(t, []string{"1+2", "1+2+3"}, seen)
		require.Equal(t, "1 2 3", r.outputs(), "only the results of the last attempt")
	})
}

// Retries go on until the deadline if the strategy has no bound.
func TestUnlimitedRetries(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(strategies.Unlimited, 10*time.Millisecond),
			opts: options(asyncop.WithDropOnFailure()),
		})
		r.answer = fails
		r.sendEach("a")
		r.advance(2 * time.Second)
		require.EqualValues(t, 100, r.stats().Attempts)
		require.EqualValues(t, 1, r.stats().Timeouts)
	})
}

// Unlimited retries without delay, answered at once, must not keep the loop from its other work.
func TestRetriesWithoutDelayDoNotStarveTheRest(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(strategies.Unlimited, 0), opts: options(asyncop.WithDropOnFailure()),
		})
		r.answer = func(c *call) error {
			if c.in != "a" {
				return upper(c)
			}
			time.Sleep(time.Millisecond) // or time would stand still
			return errBroken
		}
		r.sendEach("abc")
		r.advance(2 * time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "B C", r.outputs())
		require.EqualValues(t, 1, r.stats().Timeouts)
	})
}

// A4: delays depend on the element's own attempt, whatever others do (Flink keeps the last delay in one field for all).
func TestExponentialBackoffOfInterleavedElements(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		s := strategies.ExponentialBackoff[string](9, 100*time.Millisecond, 300*time.Millisecond, 2).
			RetryIfException(predicates.HasException)
		r := newRig(t, m, setup{timeout: time.Second, strategy: s, opts: options(asyncop.WithDropOnFailure())})
		r.answer = fails
		r.sendEach("a")
		r.advance(50 * time.Millisecond)
		r.sendEach("b")
		r.advance(750 * time.Millisecond)
		require.Equal(t, "a#1@0s b#1@50ms a#2@100ms b#2@150ms a#3@300ms b#3@350ms a#4@600ms b#4@650ms", r.callTimes())
	})
}

// ---- Exhausted retries

// An error goes to the failure policy.
func TestExhaustedErrorIsAFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(2, time.Second)})
		r.answer = fails
		r.sendEach("a")
		r.advance(2 * time.Second)
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		failed, _ := errors.AsType[*asyncop.ElementError](err)
		require.Equal(t, 3, failed.Attempts)
		require.Equal(t, 2*time.Second, failed.Elapsed)
		require.EqualValues(t, 1, r.stats().Exhausted)
	})
}

// A result is emitted as it is, as in Flink, and counted.
func TestExhaustedResultIsEmitted(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := strategies.FixedDelay[string](1, 0).RetryIfResult(func([]string) bool { return true })
		r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
		r.script("a#1", func(c *call) error { c.Complete("of attempt 1"); return nil })
		r.script("a#2", func(c *call) error { c.Complete("of attempt 2"); return nil })
		r.sendEach("a")
		require.NoError(t, r.end())
		require.Equal(t, "of attempt 2", r.outputs())
		st := r.stats()
		require.EqualValues(t, 1, st.Exhausted)
		require.EqualValues(t, 1, st.RetriesOnResult)
		require.Zero(t, st.Failures)
	})
}

// WithExhaustedAsFailure makes such an element fail instead.
func TestExhaustedResultAsFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, 0),
			opts: options(asyncop.WithExhaustedAsFailure(), asyncop.WithFailureSink(side.take)),
		})
		r.script("a#1", empty)
		r.script("a#2", empty)
		r.script("b#1", fails)
		r.script("b#2", fails)
		r.script("c#1", fails)
		r.script("c#2", upper)
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "C", r.outputs())
		require.Equal(t, "a b", side.elements())
		require.ErrorIs(t, side.got()[0].Err, asyncop.ErrRetriesExhausted)
		require.Equal(t, errBroken, side.got()[1].Err, "an error stays what it is")
		require.EqualValues(t, 2, r.stats().Exhausted)
	})
}

// The element whose last attempt at the end of the input stays empty has exhausted its retries, too.
func TestExhaustedAtTheEndOfInput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, time.Second),
			opts: options(asyncop.WithExhaustedAsFailure(), asyncop.WithFailureSink(side.take)),
		})
		r.answer = empty
		r.sendEach("a")
		require.NoError(t, r.end())
		require.Equal(t, "a#1 a#2", r.calls())
		require.Len(t, side.got(), 1)
		require.ErrorIs(t, side.got()[0].Err, asyncop.ErrRetriesExhausted)
		require.EqualValues(t, 1, r.stats().Exhausted)
		synctest.Wait()
	})
}
