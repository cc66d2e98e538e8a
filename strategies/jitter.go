package strategies

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Jitter turns the delay of a strategy, base, into the actual wait, so that elements
// that failed together are not retried together. Operators apply it, with a random source
// of their own: a strategy stays a pure function, and a test that fixes the source fixes
// the delays.
//
// base is never negative, random never nil, and the result should not be negative. A
// Jitter may be called by several operators at once, each with its own random, so it must
// take its randomness from there. Nil means no jitter.
//
//	nil                     base                 all at once
//	FullJitter              [0, base]            the least load on a service that recovers
//	EqualJitter             [base/2, base]       never at once, at the price of more load
//	ProportionalJitter(f)   base×[1-f, 1+f]      keeps the mean
//
// Full and equal jitter come from Marc Brooker, "Exponential Backoff And Jitter", AWS
// Architecture Blog, 2015, where full jitter needs the fewest calls. The article's
// decorrelated jitter is left out: it draws from the delay waited before, so it is not a
// function of the attempt, and would need memory for every element.
//
// WithJitter of a strategy or a [Policy] takes a Jitter. A strategy of your own may have
// a method Jitter() Jitter; operators read it once, when they are built.
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
// fraction of it, so that a delay can exceed the max of [ExponentialBackoff]. The
// connection back-off of gRPC uses a fraction of 0.2. ProportionalJitter panics if
// fraction is not in [0, 1].
func ProportionalJitter(fraction float64) Jitter {
	if !(fraction >= 0 && fraction <= 1) { // in this form NaN fails too
		panic(fmt.Sprintf("strategies: ProportionalJitter: fraction outside [0, 1]: %v", fraction))
	}
	return func(base time.Duration, random *rand.Rand) time.Duration {
		middle := uint64(max(0, base))
		spread := min(middle, uint64(math.Round(fraction*float64(middle))))
		return between(middle-spread, middle+spread, random)
	}
}

// between draws evenly from [low, high] and cuts what no Duration can hold. high-low must
// be less than the greatest uint64.
func between(low, high uint64, random *rand.Rand) time.Duration {
	d := low + random.Uint64N(high-low+1)
	return time.Duration(min(d, math.MaxInt64))
}
