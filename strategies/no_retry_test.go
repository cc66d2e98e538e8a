package strategies_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

func TestNoRetry_Conforms(t *testing.T) {
	strategiestest.Run(t, strategies.NoRetry[int])
}

func TestNoRetry(t *testing.T) {
	s := strategies.NoRetry[int]()
	for _, n := range []int{-1, 0, 1, 2, math.MaxInt} {
		assert.False(t, s.CanRetry(n))
		assert.Zero(t, s.BackoffTime(n))
	}
	assert.Nil(t, s.RetryPredicate())
}

type embedsNoRetry struct {
	strategies.AsyncRetryStrategy[int]
}

// Only NoRetry itself, alone or as a policy, allows a timeout of 0.
func TestStepsKnowNoRetry(t *testing.T) {
	known := func(s strategies.Retry[int]) bool { return decision.StepsOf(strategies.PolicyOf(s)).NoRetry }
	assert.True(t, known(strategies.NoRetry[int]()))
	assert.True(t, known(strategies.PolicyOf(strategies.NoRetry[int]())))
	assert.True(t, decision.StepsOf(strategies.PolicyOf(strategies.NoRetry[any]())).NoRetry)
	assert.False(t, known(strategies.FixedDelay[int](0, 0)))
	assert.False(t, known(strategies.FixedDelay[int](0, 0).RetryIfException(predicates.HasException)))
	assert.False(t, known(strategies.ReasonAware(predicates.Named[int](), nil)))
	assert.False(t, known(embedsNoRetry{strategies.NoRetry[int]()}))
}
