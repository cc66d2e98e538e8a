package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// builtin has the common methods of strategies with a retry limit. S is the type of the
// strategy, which every setter returns.
type builtin[S any] interface {
	strategies.AsyncRetryStrategy[int]
	Jitter() strategies.Jitter
	MaxRetries() int
	RetryIfResult(predicates.ResultPredicate[int]) S
	RetryIfException(predicates.ExceptionPredicate) S
	WithJitter(strategies.Jitter) S
}

func fixed(maxRetries int) *strategies.FixedDelayStrategy[int] {
	return strategies.FixedDelay[int](maxRetries, time.Second)
}

func exponential(maxRetries int) *strategies.ExponentialBackoffStrategy[int] {
	return strategies.ExponentialBackoff[int](maxRetries, time.Second, time.Hour, 2)
}

// A4
func TestCanRetry(t *testing.T) {
	t.Run("FixedDelay", func(t *testing.T) { testCanRetry(t, fixed) })
	t.Run("ExponentialBackoff", func(t *testing.T) { testCanRetry(t, exponential) })
}

func testCanRetry[S builtin[S]](t *testing.T, newStrategy func(maxRetries int) S) {
	t.Helper()
	tests := []struct {
		maxRetries int
		yes, no    []int
	}{
		{0, nil, []int{1, 2, math.MaxInt}},
		{1, []int{1}, []int{2, 3}},
		{10, []int{1, 9, 10}, []int{11, 12, math.MaxInt}}, // Flink's own test of maxAttempts
		{strategies.Unlimited, []int{1, 1 << 20, math.MaxInt}, nil},
	}
	for _, tt := range tests {
		s := newStrategy(tt.maxRetries)
		assert.Equal(t, tt.maxRetries, s.MaxRetries())
		for _, n := range tt.yes {
			assert.True(t, s.CanRetry(n), "maxRetries %d, attempt %d", tt.maxRetries, n)
		}
		for _, n := range tt.no {
			assert.False(t, s.CanRetry(n), "maxRetries %d, attempt %d", tt.maxRetries, n)
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		maxRetries := rapid.IntRange(0, 1000).Draw(t, "maxRetries")
		s := newStrategy(maxRetries)
		calls := 1
		for s.CanRetry(calls) {
			calls++
		}
		if calls != maxRetries+1 {
			t.Fatalf("%d calls with %d retries", calls, maxRetries)
		}
	})
}

func TestRetryPredicate(t *testing.T) {
	t.Run("FixedDelay", func(t *testing.T) { testRetryPredicate(t, fixed(3)) })
	t.Run("ExponentialBackoff", func(t *testing.T) { testRetryPredicate(t, exponential(3)) })
}

func testRetryPredicate[S builtin[S]](t *testing.T, bare S) {
	t.Helper()
	assert.Nil(t, bare.RetryPredicate(), "no predicate, no retry")
	assert.Nil(t, bare.RetryIfResult(nil).RetryIfException(nil).RetryPredicate())

	results := bare.RetryIfResult(predicates.EmptyResult).RetryPredicate()
	assert.True(t, results.ResultPredicate()(nil))
	assert.Nil(t, results.ExceptionPredicate())

	errs := bare.RetryIfException(predicates.HasException).RetryPredicate()
	assert.Nil(t, errs.ResultPredicate())
	assert.True(t, errs.ExceptionPredicate()(assert.AnError))

	both := bare.RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException)
	assert.NotNil(t, both.RetryPredicate().ResultPredicate())
	assert.NotNil(t, both.RetryPredicate().ExceptionPredicate())

	replaced := both.RetryIfResult(predicates.Not(predicates.EmptyResult[int])).RetryPredicate()
	assert.False(t, replaced.ResultPredicate()(nil), "the later predicate replaces the earlier one")
	assert.NotNil(t, replaced.ExceptionPredicate())
	assert.Nil(t, both.RetryIfException(nil).RetryPredicate().ExceptionPredicate())
}

func TestBuildersReturnCopies(t *testing.T) {
	t.Run("FixedDelay", func(t *testing.T) { testBuildersReturnCopies(t, fixed(3)) })
	t.Run("ExponentialBackoff", func(t *testing.T) { testBuildersReturnCopies(t, exponential(3)) })
}

func testBuildersReturnCopies[S builtin[S]](t *testing.T, bare S) {
	t.Helper()
	full := bare.
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException).
		WithJitter(strategies.FullJitter)

	assert.Nil(t, bare.RetryPredicate(), "the original has not changed")
	assert.Nil(t, bare.Jitter())
	assert.NotNil(t, full.Jitter())
	assert.Nil(t, full.WithJitter(nil).Jitter())
	assert.NotNil(t, full.Jitter())

	assert.Equal(t, bare.MaxRetries(), full.MaxRetries())
	for n := 1; n <= 3; n++ {
		assert.Equal(t, bare.BackoffTime(n), full.BackoffTime(n), "jitter does not touch the base delay")
	}
}
