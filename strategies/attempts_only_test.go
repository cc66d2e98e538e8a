package strategies_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// There and back again.
func TestWithoutReasons(t *testing.T) {
	flip := strategies.ExponentialBackoff[string](3, 10*ms, time.Second, 3)
	pair := predicates.RetryIf(predicates.EmptyResult[string], predicates.HasException)
	back := strategies.WithoutReasons(strategies.ByAttempts[string](flip), pair)
	strategiestest.Run(t, func() strategies.AsyncRetryStrategy[string] { return back })
	for n := 1; n <= 5; n++ {
		assert.Equal(t, flip.CanRetry(n), back.CanRetry(n))
		assert.Equal(t, flip.BackoffTime(n), back.BackoffTime(n))
	}
	assert.True(t, back.RetryPredicate().ResultPredicate()(nil))
	assert.Nil(t, strategies.WithoutReasons(strategies.ByAttempts[string](flip), nil).RetryPredicate())
}

// What depends on reasons is no AttemptStrategy, so WithoutReasons does not compile
// for it.
func TestWhatDependsOnReasonsStaysAware(t *testing.T) {
	best := strategies.BestEffort[string]()
	for _, s := range []strategies.ReasonStrategy[string]{
		best, strategies.HonorPushback(best), strategies.Immediate[string](best), failFast(new(int)),
		overriding{best},
		strategies.HonorPushback[string](strategies.ByAttempts(strategies.NoRetry[string]())),
	} {
		_, ok := s.(strategies.AttemptStrategy[string])
		assert.False(t, ok, "%T", s)
	}
}
