package asyncop

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// retryableDelegator stands between the outcome of an attempt and the element: it asks the predicate whether the
// outcome deserves another attempt and the strategy whether and when there may be one. It holds no state of elements;
// their attempts are counted in their slots.
type retryableDelegator[OUT any] struct {
	strategy    strategies.AsyncRetryStrategy[OUT] // nil: no retry
	onResult    predicates.ResultPredicate[OUT]    // nil: never
	onException predicates.ExceptionPredicate      // nil: never
	jitter      strategies.Jitter
	random      *rand.Rand
}

// newRetryableDelegator reads the predicate, once. A strategy without predicates is no retry.
func newRetryableDelegator[OUT any](
	strategy strategies.AsyncRetryStrategy[OUT], source rand.Source,
) retryableDelegator[OUT] {
	var d retryableDelegator[OUT]
	p := strategy.RetryPredicate()
	if isNil(p) {
		return d
	}
	d.onResult, d.onException = p.ResultPredicate(), p.ExceptionPredicate()
	if d.onResult == nil && d.onException == nil {
		return d
	}
	d.strategy = strategy
	if j, ok := strategy.(strategies.Jittered); ok {
		d.jitter = j.Jitter()
	}
	if source == nil {
		source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	d.random = rand.New(source)
	return d
}

// decision is what becomes of an outcome.
type decision struct {
	again bool          // the predicate asks for another attempt
	may   bool          // and the strategy allows it
	delay time.Duration // after this time
	err   error         // the strategy's answer was nonsense
}

// asks tells whether an outcome of this kind is looked at at all.
func (d *retryableDelegator[OUT]) asks(err error) bool {
	if err != nil {
		return d.onException != nil
	}
	return d.onResult != nil
}

// decide calls predicate and strategy. With final, no retry can follow anyway and the strategy is not asked.
func (d *retryableDelegator[OUT]) decide(attempts int, results []OUT, err error, final bool) (dec decision) {
	if err != nil {
		dec.again = d.onException(err)
	} else {
		dec.again = d.onResult(results)
	}
	if !dec.again || final || !d.strategy.CanRetry(attempts) {
		return dec
	}
	base := d.strategy.BackoffTime(attempts)
	if base < 0 {
		dec.err = fmt.Errorf("asyncop: strategy %T: negative BackoffTime(%d): %v", d.strategy, attempts, base)
		return dec
	}
	dec.may, dec.delay = true, d.jitter.Apply(base, d.random)
	return dec
}
