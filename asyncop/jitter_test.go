package asyncop_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Jitter is applied by the operator, to the strategy's pure base delay.

// retryDelays runs 20 elements that fail once and returns how long each waited for its retry.
func retryDelays(t *testing.T, m mode, s strategy, opts ...asyncop.Option) []time.Duration {
	t.Helper()
	m.capacity = 20
	r := newRig(t, m, setup{timeout: time.Hour, strategy: s, opts: opts})
	r.answer = func(c *call) error {
		if c.attempt == 1 {
			return errBroken
		}
		return upper(c)
	}
	r.sendEach("abcdefghijklmnopqrst")
	r.advance(10 * time.Second)
	require.NoError(t, r.end())
	var delays []time.Duration
	for _, c := range r.made {
		if c.attempt == 2 {
			delays = append(delays, c.at)
		}
	}
	require.Len(t, delays, 20)
	return delays
}

// The delays lie where the jitter says, and differ, from operator to operator, too.
func TestJitterSpreadsRetries(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := retryAll(1, time.Second).WithJitter(strategies.EqualJitter)
		delays := retryDelays(t, m, s)
		distinct := map[time.Duration]bool{}
		for _, d := range delays {
			require.GreaterOrEqual(t, d, time.Second/2)
			require.LessOrEqual(t, d, time.Second)
			distinct[d] = true
		}
		require.Greater(t, len(distinct), 10)
		require.NotEqual(t, delays, retryDelays(t, m, s), "no two operators are alike")
	})
}

// Without jitter, delays are exact.
func TestNoJitterByDefault(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		for _, d := range retryDelays(t, m, retryAll(1, time.Second)) {
			require.Equal(t, time.Second, d)
		}
	})
}

// jittered is a user's strategy with a jitter.
type jittered struct {
	ownStrategy
	jitter strategies.Jitter
}

func (j jittered) Jitter() strategies.Jitter { return j.jitter }

// A user's strategy may bring its own; what it makes negative is 0, and what it makes too long is not scheduled.
func TestJitterOfAUsersStrategy(t *testing.T) {
	base := func() time.Duration { return time.Second }
	for want, jitter := range map[string]strategies.Jitter{
		"a#1@0s a#2@3s": func(base time.Duration, _ *rand.Rand) time.Duration { return 3 * base },
		"a#1@0s a#2@0s": func(time.Duration, *rand.Rand) time.Duration { return -time.Second },
		"a#1@0s a#2@1s": nil,
		"a#1@0s":        func(time.Duration, *rand.Rand) time.Duration { return math.MaxInt64 },
	} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: jittered{ownStrategy{backoff: base}, jitter}, wrap: handled})
			r.script("a#1", fails)
			r.sendEach("a")
			r.advance(2 * time.Minute)
			require.Equal(t, want, r.callTimes())
			require.NoError(t, r.end())
		})
	}
}

// The strategy's own answer stays pure: jitter touches the wait, not the sequence.
func TestJitterDoesNotAddUp(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := strategies.ExponentialBackoff[string](9, time.Second, time.Hour, 2).
			RetryIfException(predicates.HasException).
			WithJitter(func(base time.Duration, _ *rand.Rand) time.Duration { return base + time.Millisecond })
		r := newRig(t, m, setup{timeout: 8 * time.Second, strategy: s, wrap: handled})
		r.answer = fails
		r.sendEach("a")
		r.advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@1.001s a#3@3.002s a#4@7.003s", r.callTimes())
		require.NoError(t, r.end())
	})
}
