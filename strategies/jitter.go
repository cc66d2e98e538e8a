package strategies

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Jitter turns the delay of a strategy, base, into the actual wait, so that elements
// that failed together are not retried together. Operators apply it with their own random
// source.
//
// base is never negative, random is never nil, and the result should not be negative.
// Several operators may call a Jitter at once, each with its own random; it must not use
// another source. Nil means no jitter.
//
//	nil                     base                 all at once
//	FullJitter              [0, base]            the least load on a service that recovers
//	EqualJitter             [base/2, base]       never at once, at the price of more load
//	ProportionalJitter(f)   base×[1-f, 1+f]      keeps the mean
//
// Full and equal jitter come from Marc Brooker, "Exponential Backoff And Jitter", AWS
// Architecture Blog, 2015, where full jitter needs the fewest calls. Its decorrelated
// jitter would need memory for every element.
//
// WithJitter of a strategy or a [Policy] takes a Jitter.
type Jitter func(base time.Duration, random *rand.Rand) time.Duration

// FullJitter is the [Jitter] that draws evenly from [0, base].
func FullJitter(base time.Duration, random *rand.Rand) time.Duration {
	return between(0, uint64(max(0, base)), random)
}

// EqualJitter is the [Jitter] that waits half of base and draws the other half evenly:
// [base/2, base].
func EqualJitter(base time.Duration, random *rand.Rand) time.Duration {
	base = max(0, base)
	return between(uint64(base/2), uint64(base), random)
}

// ProportionalJitter returns the [Jitter] that draws evenly from base plus or minus a
// fraction of it, so a delay can exceed the max of [ExponentialBackoff]. gRPC's
// connection back-off uses 0.2. ProportionalJitter panics if fraction is not in [0, 1].
func ProportionalJitter(fraction float64) Jitter {
	if !(fraction >= 0 && fraction <= 1) { // also excludes NaN
		panic(fmt.Sprintf("strategies: ProportionalJitter: fraction outside [0, 1]: %v", fraction))
	}
	return func(base time.Duration, random *rand.Rand) time.Duration {
		middle := uint64(max(0, base))
		spread := min(middle, uint64(math.Round(fraction*float64(middle))))
		return between(middle-spread, middle+spread, random)
	}
}

// between draws evenly from [low, high], at most the greatest Duration. high-low must be
// less than the greatest uint64.
func between(low, high uint64, random *rand.Rand) time.Duration {
	d := low + random.Uint64N(high-low+1)
	return time.Duration(min(d, math.MaxInt64))
}
