package strategies_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

func TestNoRetryConforms(t *testing.T) {
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

func TestIsNoRetry(t *testing.T) {
	assert.True(t, strategies.IsNoRetry(strategies.NoRetry[int]()))
	assert.True(t, strategies.IsNoRetry(strategies.NoRetry[any]()))
	assert.False(t, strategies.IsNoRetry[int](nil))
	assert.False(t, strategies.IsNoRetry(strategies.FixedDelay[int](0, 0)))
	assert.False(t, strategies.IsNoRetry(strategies.FixedDelay[int](0, 0).RetryIfException(predicates.HasException)))
	assert.False(t, strategies.IsNoRetry(embedsNoRetry{strategies.NoRetry[int]()}))
}
