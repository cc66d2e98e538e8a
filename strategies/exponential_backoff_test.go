package strategies_test

import (
	"fmt"
	"math"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

const (
	ms      = time.Millisecond
	longest = time.Duration(math.MaxInt64)
)

func TestExponentialBackoffConforms(t *testing.T) {
	tests := map[string]*strategies.ExponentialBackoffStrategy[int]{
		"bare":      strategies.ExponentialBackoff[int](8, 100*ms, 5*time.Second, 2),
		"zeros":     strategies.ExponentialBackoff[int](0, 0, 0, 1),
		"unlimited": strategies.ExponentialBackoff[int](strategies.Unlimited, 1, longest, 1.1),
		"dressed": strategies.ExponentialBackoff[int](200, ms, time.Hour, 1.5).
			RetryIfResult(predicates.EmptyResult).
			RetryIfException(predicates.HasException).
			WithJitter(strategies.ProportionalJitter(0.2)),
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			strategiestest.Run(t, func() *strategies.ExponentialBackoffStrategy[int] { return s })
		})
	}
}

func TestExponentialBackoffDelays(t *testing.T) {
	tests := []struct {
		initial, max time.Duration
		multiplier   float64
		want         []time.Duration // from attempt 1
	}{
		{100 * ms, 5 * time.Second, 2, []time.Duration{ // the table in the docs
			100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5 * time.Second, 5 * time.Second,
		}},
		{10 * ms, time.Second, 3, []time.Duration{10 * ms, 30 * ms, 90 * ms, 270 * ms, 810 * ms, time.Second, time.Second}},
		{10 * ms, time.Second, 1.1, []time.Duration{ // 10ms × 1.1 is 11.000000000000002 in floating point
			10 * ms, 11 * ms, 12_100 * time.Microsecond, 13_310 * time.Microsecond,
			14_641 * time.Microsecond, 16_105_100, 17_715_610, 19_487_171, 21_435_888, // nanoseconds, at last rounded
		}},
		{ms, 2 * ms, 1.5, []time.Duration{ms, 1500 * time.Microsecond, 2 * ms, 2 * ms}},
		{time.Second, longest, 10, []time.Duration{ // powers of ten stay exact up to the largest that fits
			1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, longest, longest,
		}},
		{1, longest, 2, powersOfTwo()},
		{1, 3, 1.4, []time.Duration{1, 1, 2, 3, 3}}, // rounded once, not at every step, which would stay at 1
		{7 * ms, 7 * ms, 2, []time.Duration{7 * ms, 7 * ms, 7 * ms}},
		{7 * ms, time.Hour, 1, []time.Duration{7 * ms, 7 * ms, 7 * ms}},
		{0, time.Hour, 2, []time.Duration{0, 0, 0}},
		{0, 0, 2, []time.Duration{0, 0, 0}},
		{1<<53 + 1, longest, 1, []time.Duration{1<<53 + 1, 1<<53 + 1}}, // the nearest float64 is below
		{1<<53 + 3, longest, 1, []time.Duration{1<<53 + 3, 1<<53 + 3}}, // above
		{longest, longest, 1, []time.Duration{longest, longest}},
		{longest - 1, longest, 1, []time.Duration{longest - 1, longest - 1}}, // the same float64 as longest
		{1, longest, math.MaxFloat64, []time.Duration{1, longest, longest}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v to %v by %v", tt.initial, tt.max, tt.multiplier), func(t *testing.T) {
			s := strategies.ExponentialBackoff[int](10, tt.initial, tt.max, tt.multiplier)
			for i, want := range tt.want {
				assert.Equal(t, want, s.BackoffTime(i+1), "attempt %d", i+1)
			}
			for _, n := range []int{math.MinInt, -1, 0} {
				assert.Equal(t, tt.initial, s.BackoffTime(n), "attempt %d", n)
			}
		})
	}
}

func powersOfTwo() []time.Duration {
	var ds []time.Duration
	for i := range 63 {
		ds = append(ds, 1<<i)
	}
	return append(ds, longest, longest)
}

func TestExponentialBackoffTime_FarOut(t *testing.T) {
	growing := strategies.ExponentialBackoff[int](strategies.Unlimited, ms, time.Hour, 1.0001)
	constant := strategies.ExponentialBackoff[int](strategies.Unlimited, ms, time.Hour, 1)
	zero := strategies.ExponentialBackoff[int](strategies.Unlimited, 0, time.Hour, 2)
	for _, n := range []int{1 << 20, math.MaxInt32 - 1, math.MaxInt32, math.MaxInt - 1, math.MaxInt} {
		assert.Equal(t, time.Hour, growing.BackoffTime(n), "attempt %d", n)
		assert.Equal(t, ms, constant.BackoffTime(n), "attempt %d", n)
		assert.Zero(t, zero.BackoffTime(n), "attempt %d", n)
	}
}

// drawn is a random strategy with its arguments.
type drawn struct {
	*strategies.ExponentialBackoffStrategy[int]

	initial, max time.Duration
	multiplier   float64
}

func drawExponential(t *rapid.T) drawn {
	initial := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "initial"))
	limit := time.Duration(rapid.Int64Range(int64(initial), math.MaxInt64).Draw(t, "max"))
	multiplier := rapid.OneOf(
		rapid.SampledFrom([]float64{1, math.Nextafter(1, 2), 1 + 1e-9, 1.001, 1.1, 1.5, 1.6, 2, 3, 10}),
		rapid.Float64Range(1, 1.0001),
		rapid.Float64Range(1, 3),
		rapid.Float64Range(1, math.MaxFloat64),
	).Draw(t, "multiplier")
	return drawn{strategies.ExponentialBackoff[int](strategies.Unlimited, initial, limit, multiplier), initial, limit, multiplier}
}

func TestExponentialBackoffIsBoundedAndMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawExponential(t)
		if d := s.BackoffTime(1); d != s.initial {
			t.Fatalf("d(1) = %v, not %v", d, s.initial)
		}
		start := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, math.MaxInt32)).Draw(t, "start")
		before := s.initial
		for n := start; n < start+200; n++ {
			d := s.BackoffTime(n)
			if d < before || d > s.max {
				t.Fatalf("d(%d) = %v after %v, max %v", n, d, before, s.max)
			}
			before = d
		}
	})
}

// The delay may differ from the definition, iterated in 200-bit arithmetic, by the error
// of float64: half a nanosecond, and 2⁻⁵² of the delay per step.
func TestExponentialBackoffFollowsItsDefinition(t *testing.T) {
	exact := func(x float64) *big.Float { return new(big.Float).SetPrec(200).SetFloat64(x) }
	rapid.Check(t, func(t *rapid.T) {
		s := drawExponential(t)
		multiplier := exact(s.multiplier)
		limit := new(big.Float).SetPrec(200).SetInt64(int64(s.max))
		want := new(big.Float).SetPrec(200).SetInt64(int64(s.initial))
		for n := 1; n <= 150; n++ {
			got := new(big.Float).SetPrec(200).SetInt64(int64(s.BackoffTime(n)))
			off, _ := new(big.Float).Sub(got, want).Float64()
			w, _ := want.Float64()
			if math.Abs(off) > 0.5+w*float64(n)*0x1p-52 {
				t.Fatalf("d(%d) = %v, the definition gives %v", n, s.BackoffTime(n), time.Duration(w))
			}
			if want.Mul(want, multiplier); want.Cmp(limit) > 0 {
				want.Set(limit)
			}
		}
	})
}

// Flink's strategy fails this: its records share one delay.
func TestExponentialBackoffIsPureUnderInterleaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawExponential(t)
		alone := func(n int) time.Duration {
			return strategies.ExponentialBackoff[int](1, s.initial, s.max, s.multiplier).BackoffTime(n)
		}
		attempts := make([]int, 4) // of four elements in random order
		for _, i := range rapid.SliceOf(rapid.IntRange(0, len(attempts)-1)).Draw(t, "order") {
			attempts[i]++
			if got, want := s.BackoffTime(attempts[i]), alone(attempts[i]); got != want {
				t.Fatalf("element %d: d(%d) = %v, alone %v", i, attempts[i], got, want)
			}
		}
	})
}

func TestExponentialBackoffIsPureUnderConcurrency(t *testing.T) {
	s := strategies.ExponentialBackoff[int](strategies.Unlimited, 100*ms, 5*time.Second, 2)
	want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				for i, d := range want {
					if got := s.BackoffTime(i + 1); got != d {
						t.Errorf("d(%d) = %v, not %v", i+1, got, d)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestExponentialBackoffPanics(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		want         string
		maxRetries   int
		initial, max time.Duration
		multiplier   float64
	}{
		{"negative maxRetries: -2", -2, ms, time.Second, 2},
		{"negative initial: -1ns", 3, -1, time.Second, 2},
		{"negative initial: -2s", 3, -2 * time.Second, -time.Second, 2},
		{"max below initial: 5ms < 10ms", 3, 10 * ms, 5 * ms, 2},
		{"max below initial: -1s < 0s", 3, 0, -time.Second, 2},
		{"multiplier below 1: 0.5", 3, ms, time.Second, 0.5},
		{"multiplier below 1: 0", 3, ms, time.Second, 0},
		{"multiplier below 1: -2", 3, ms, time.Second, -2},
		{"multiplier not finite: NaN", 3, ms, time.Second, nan},
		{"multiplier not finite: +Inf", 3, ms, time.Second, inf},
		{"multiplier not finite: -Inf", 3, ms, time.Second, -inf},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			assert.PanicsWithValue(t, "strategies: ExponentialBackoff: "+tt.want, func() {
				strategies.ExponentialBackoff[int](tt.maxRetries, tt.initial, tt.max, tt.multiplier)
			})
		})
	}
}

func BenchmarkExponentialBackoff(b *testing.B) {
	s := strategies.ExponentialBackoff[int](strategies.Unlimited, 100*ms, time.Hour, 1.5)
	for _, n := range []int{2, 10, math.MaxInt32} {
		b.Run(fmt.Sprintf("attempt=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.BackoffTime(n)
			}
		})
	}
}
