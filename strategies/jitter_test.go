package strategies_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/strategies"
)

// jitters has all jitters with their ranges, for a base that is small enough to be
// spread.
var jitters = []struct {
	name   string
	jitter strategies.Jitter
	bounds func(base time.Duration) (low, high time.Duration)
}{
	{"nil", nil, func(base time.Duration) (low, high time.Duration) { return base, base }},
	{"full", strategies.FullJitter, func(base time.Duration) (low, high time.Duration) { return 0, base }},
	{"equal", strategies.EqualJitter, func(base time.Duration) (low, high time.Duration) { return base / 2, base }},
	{"proportional 0", strategies.ProportionalJitter(0), func(base time.Duration) (low, high time.Duration) { return base, base }},
	{"proportional 0.2", strategies.ProportionalJitter(0.2), func(base time.Duration) (low, high time.Duration) {
		return base - (base+2)/5, base + (base+2)/5
	}},
	{"proportional 1", strategies.ProportionalJitter(1), func(base time.Duration) (low, high time.Duration) { return 0, 2 * base }},
}

func TestFullJitterEqualJitterProportionalJitter_Bounds(t *testing.T) {
	for _, tt := range jitters {
		t.Run(tt.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				// Up to a month, for which a float64 is exact to the nanosecond.
				base := time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "base"))
				random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				low, high := tt.bounds(base)
				for range 20 {
					if d := decision.Spread(tt.jitter, base, random); d < low || d > high {
						t.Fatalf("jitter of %v is %v, outside [%v, %v]", base, d, low, high)
					}
				}
			})
		})
	}
}

// Small ranges are drawn from end to end.
func TestJitterReachesItsBounds(t *testing.T) {
	for _, tt := range jitters {
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			for base := range time.Duration(11) {
				seen := map[time.Duration]bool{}
				for range 1000 {
					seen[decision.Spread(tt.jitter, base, random)] = true
				}
				low, high := tt.bounds(base)
				assert.Len(t, seen, int(high-low)+1, "base %d", base)
				assert.True(t, seen[low] && seen[high], "base %d", base)
			}
		})
	}
}

// Every tenth of the range gets its share: 1000 of 10000 draws, give or take five
// standard deviations.
func TestJitterIsEven(t *testing.T) {
	const draws = 10_000
	base := time.Hour
	for _, tt := range jitters {
		low, high := tt.bounds(base)
		if low == high {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var tenths [10]int
			for range draws {
				d := tt.jitter(base, random)
				tenths[min(9, 10*(d-low)/(high-low))]++
			}
			for i, n := range tenths {
				assert.InDelta(t, draws/10, n, 150, "tenth %d", i)
			}
		})
	}
}

func TestJitterAtTheEdges(t *testing.T) {
	for _, tt := range jitters {
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			for range 1000 {
				assert.Zero(t, decision.Spread(tt.jitter, 0, random))
				assert.Zero(t, decision.Spread(tt.jitter, -time.Second, random), "never negative")
				assert.GreaterOrEqual(t, decision.Spread(tt.jitter, math.MaxInt64, random), time.Duration(0), "no overflow")
				assert.GreaterOrEqual(t, decision.Spread(tt.jitter, math.MaxInt64-1, random), time.Duration(0), "no overflow")
			}
		})
	}
}

// If a float64 rounds a base up, the spread must not exceed the base.
func TestProportionalJitterOfGreatBases(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, base := range []time.Duration{1<<53 + 3, math.MaxInt64} {
		below := 0
		for range 1000 {
			if strategies.ProportionalJitter(1)(base, random) < base {
				below++
			}
		}
		assert.InDelta(t, 500, below, 80, "base %d", base)
	}
}

func TestJitterFollowsItsSource(t *testing.T) {
	for _, tt := range jitters {
		t.Run(tt.name, func(t *testing.T) {
			a, b := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
			for range 100 {
				assert.Equal(t, decision.Spread(tt.jitter, time.Second, a), decision.Spread(tt.jitter, time.Second, b))
			}
		})
	}
}

func TestApplyCutsANegativeJitter(t *testing.T) {
	back := strategies.Jitter(func(time.Duration, *rand.Rand) time.Duration { return -1 })
	assert.Zero(t, decision.Spread(back, time.Second, nil))
}

func TestProportionalJitterPanics(t *testing.T) {
	for want, fraction := range map[string]float64{
		"-0.1": -0.1,
		"1.5":  1.5,
		"+Inf": math.Inf(1),
		"-Inf": math.Inf(-1),
		"NaN":  math.NaN(),
	} {
		assert.PanicsWithValue(t, "strategies: ProportionalJitter: fraction outside [0, 1]: "+want, func() {
			strategies.ProportionalJitter(fraction)
		})
	}
}
