package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/strategies"
)

// R27
func TestControlledBackoff(t *testing.T) {
	for retries, want := range map[int]time.Duration{
		math.MinInt: ms, -1: ms, 0: ms, 1: 10 * ms, 2: 50 * ms, 3: 100 * ms, 4: 500 * ms,
		5: time.Second, 6: time.Second, math.MaxInt - 1: time.Second, math.MaxInt: time.Second,
	} {
		assert.Equal(t, want, strategies.ControlledBackoff(retries), "retries %d", retries)
	}
}

// R18, and the sequences of section 2.2.
func TestExponential(t *testing.T) {
	tests := []struct {
		initial, max time.Duration
		factor       float64
		want         []time.Duration
	}{
		{ms, 500 * ms, 2, []time.Duration{
			ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 500 * ms, 500 * ms,
		}},
		{10 * ms, time.Second, 3, []time.Duration{
			10 * ms, 30 * ms, 90 * ms, 270 * ms, 810 * ms, time.Second, time.Second,
		}},
	}
	for _, tt := range tests {
		b := strategies.Exponential(tt.initial, tt.max, tt.factor)
		for retries, want := range tt.want {
			assert.Equal(t, want, b(retries), "retries %d", retries)
		}
		for _, n := range []int{math.MaxInt32 - 1, math.MaxInt - 1, math.MaxInt} {
			assert.Equal(t, tt.max, b(n), "retries %d", n)
		}
		assert.Equal(t, tt.initial, b(-1))
		assert.Equal(t, tt.initial, b(math.MinInt))
	}
	assert.PanicsWithValue(t, "strategies: ExponentialBackoff: max below initial: 1ms < 2ms",
		func() { strategies.Exponential(2*ms, ms, 2) })
}

// Whatever the back-off: never negative, never shrinking, a pure function, and far
// out as good as at the start.
func TestEveryBackoffIsMonotoneBoundedAndPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawExponential(t)
		backoffs := map[string]struct {
			b     strategies.Backoff
			limit time.Duration
		}{
			"controlled":  {strategies.ControlledBackoff, time.Second},
			"exponential": {strategies.Exponential(d.initial, d.max, d.multiplier), d.max},
			"fixed":       {strategies.BackoffOf(strategies.FixedDelay[int](3, d.initial)), d.initial},
		}
		n := rapid.IntRange(0, math.MaxInt).Draw(t, "n")
		m := rapid.IntRange(0, n).Draw(t, "m")
		for name, row := range backoffs {
			before, after := row.b(m), row.b(n)
			if before < 0 || before > after || after > row.limit {
				t.Fatalf("%s: d(%d) = %v, d(%d) = %v, limit %v", name, m, before, n, after, row.limit)
			}
			if row.b(m) != before {
				t.Fatalf("%s: d(%d) has changed", name, m)
			}
		}
	})
}

// n retries are n+1 attempts.
func TestBackoffOfCountsRetries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawExponential(t)
		b := strategies.BackoffOf(d.ExponentialBackoffStrategy)
		n := rapid.IntRange(0, math.MaxInt32-1).Draw(t, "n")
		if b(n) != d.BackoffTime(n+1) {
			t.Fatalf("%d retries: %v, %d attempts: %v", n, b(n), n+1, d.BackoffTime(n+1))
		}
	})
}

type asks struct {
	strategies.AsyncRetryStrategy[int]
	attempts *[]int
}

func (s asks) BackoffTime(n int) time.Duration { *s.attempts = append(*s.attempts, n); return 0 }

// A strategy is asked about attempts that there are, also by who counts wrongly.
func TestBackoffOfAsksFromOneOn(t *testing.T) {
	var attempts []int
	b := strategies.BackoffOf[int](asks{attempts: &attempts})
	for _, retries := range []int{-7, 0, 1, strategies.Unlimited} {
		b(retries)
	}
	assert.Equal(t, []int{1, 1, 2, strategies.Unlimited}, attempts)
}
