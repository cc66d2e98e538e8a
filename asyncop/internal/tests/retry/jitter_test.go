package retry_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Jitter is applied by the operator, to the strategy's pure base delay.

// retryDelays runs 20 elements that fail once and returns how long each waited for its
// retry.
func retryDelays(t *testing.T, m optest.Mode, s optest.Strategy, opts ...asyncop.Option) []time.Duration {
	t.Helper()
	m.Capacity = 20
	r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour, Strategy: s, Opts: opts})
	r.Answer = func(c *optest.Call) error {
		if c.Attempt == 1 {
			return optest.ErrBroken
		}
		return optest.Upper(c)
	}
	r.SendEach("abcdefghijklmnopqrst")
	r.Advance(10 * time.Second)
	require.NoError(t, r.End())
	var delays []time.Duration
	for _, c := range r.Made {
		if c.Attempt == 2 {
			delays = append(delays, c.At)
		}
	}
	require.Len(t, delays, 20)
	return delays
}

// The delays are in the range of the jitter. They differ within an operator and between
// operators.
func TestJitterSpreadsRetries(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := optest.RetryAll(1, time.Second).WithJitter(strategies.EqualJitter)
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

func TestStrategies_NoJitterByDefault(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for _, d := range retryDelays(t, m, optest.RetryAll(1, time.Second)) {
			require.Equal(t, time.Second, d)
		}
	})
}

// jittered is a user's strategy with a jitter.
type jittered struct {
	optest.OwnStrategy
	jitter strategies.Jitter
}

func (j jittered) Jitter() strategies.Jitter { return j.jitter }

// A user's strategy may have its own jitter. A negative delay counts as 0. A retry whose
// delay is too long is not scheduled.
func TestJitterOfAUsersStrategy(t *testing.T) {
	base := func() time.Duration { return time.Second }
	for want, jitter := range map[string]strategies.Jitter{
		"a#1@0s a#2@3s": func(base time.Duration, _ *rand.Rand) time.Duration { return 3 * base },
		"a#1@0s a#2@0s": func(time.Duration, *rand.Rand) time.Duration { return -time.Second },
		"a#1@0s a#2@1s": nil,
		"a#1@0s":        func(time.Duration, *rand.Rand) time.Duration { return math.MaxInt64 },
	} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: jittered{optest.OwnStrategy{Backoff: base}, jitter}, Wrap: optest.Handled})
			r.Script("a#1", optest.Fails)
			r.SendEach("a")
			r.Advance(2 * time.Minute)
			require.Equal(t, want, r.CallTimes())
			require.NoError(t, r.End())
		})
	}
}

// Jitter changes the wait, not the strategy's sequence of delays.
func TestJitterDoesNotAddUp(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := strategies.ExponentialBackoff[string](9, time.Second, time.Hour, 2).
			RetryIfException(predicates.HasException).
			WithJitter(func(base time.Duration, _ *rand.Rand) time.Duration { return base + time.Millisecond })
		r := optest.NewRig(t, m, optest.Setup{Timeout: 8 * time.Second, Strategy: s, Wrap: optest.Handled})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@1.001s a#3@3.002s a#4@7.003s", r.CallTimes())
		require.NoError(t, r.End())
	})
}
