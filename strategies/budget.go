package strategies

import (
	"fmt"
	"math"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/decision"
)

// Budget bounds how much load retries may add to a service, so that an outage is not multiplied by retries. It is a bucket of
// tokens, one for a retry. Each first attempt puts in a fraction of a token. Time puts in a little, so that a trickle of calls
// can be retried at all. Each retry takes a token out. Over any time, be it a second or an hour,
//
//	retries ≤ burst + fraction × first attempts + perSecond × seconds
//
// A retry without a token is not made, and its element ends with the outcome that it has. There is one exception: the last
// attempt that an element gets at the end of the input is not charged if its back-off would have outlasted its timeout.
// Operators that drain their retries (WithDrainRetries of package asyncop) do not make that attempt.
//
// A retry is charged when it is scheduled, whatever becomes of it. Retries that a circuit breaker will refuse are charged, too,
// although the service never sees them: a pipeline that has a breaker needs either no budget or a back-off as long as the
// breaker's own.
//
// The idea is that of the retry budgets of Finagle and Linkerd, and of gRPC's
// throttling (A6, Client Retries), which counts successes instead of attempts.
//
// One budget belongs to one service: policies of several operators that call the
// same service may share it ([Policy.WithBudget]). Safe for concurrent use.
type Budget struct{ bucket *decision.Bucket }

// NewBudget returns a full bucket of burst tokens. Every first attempt puts a fraction of a token into it, and every second
// perSecond tokens. An example: with 0.2, 10 and 100, a service that always fails gets a hundred retries at once in the
// beginning. After that it gets 20 % more calls than without retries, and ten more a second.
//
// NewBudget panics if fraction is not in [0, 1], perSecond is negative or not finite, or burst is below 1. A fraction of a
// billionth is the smallest that counts, and a burst of 2³¹−1 the largest.
func NewBudget(fraction, perSecond float64, burst int) *Budget {
	switch {
	case !(fraction >= 0 && fraction <= 1): // in this form NaN fails too
		panic(fmt.Sprintf("strategies: NewBudget: fraction outside [0, 1]: %v", fraction))
	case !(perSecond >= 0 && perSecond <= math.MaxFloat64):
		panic(fmt.Sprintf("strategies: NewBudget: perSecond negative or not finite: %v", perSecond))
	case burst < 1:
		panic(fmt.Sprintf("strategies: NewBudget: burst below 1: %d", burst))
	}
	return &Budget{decision.NewBucket(fraction, perSecond, burst, clock.New())}
}

// WithClock returns a full budget with the settings of b that goes by c. The default is the real clock. It panics if c is nil.
func (b *Budget) WithClock(c clock.Clock) *Budget {
	mustNotBeNil("WithClock", c)
	return &Budget{b.bucket.WithClock(c)}
}

// Balance returns the tokens that are there, for metrics.
func (b *Budget) Balance() float64 { return b.tokens().Balance() }

// tokens returns nil, which covers every retry, if there is no budget.
func (b *Budget) tokens() *decision.Bucket {
	if b == nil {
		return nil
	}
	return b.bucket
}
