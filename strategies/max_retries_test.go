package strategies_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// hidesAll is a wrapper without Unwrap; wraps is a wrapper with Unwrap.
type hidesAll struct {
	strategies.AsyncRetryStrategy[int]
}

type wraps struct{ hidesAll }

func (w wraps) Unwrap() any { return w.AsyncRetryStrategy }

type embeds struct {
	*strategies.BestEffortStrategy[int]
}

func TestMaxRetriesOf(t *testing.T) {
	classify := predicates.Named[int]()
	fixed := strategies.FixedDelay[int](3, time.Second).WithJitter(strategies.FullJitter).RetryIfException(predicates.HasException)
	exponential := strategies.ExponentialBackoff[int](7, time.Second, time.Minute, 2)
	best := strategies.BestEffort[int]()
	byFunc := strategies.ReasonStrategyFunc[int](func(context.Context, *predicates.Attempt[int]) (strategies.Action, error) {
		return strategies.Action{}, nil
	})
	const unknown = -1
	for name, tt := range map[string]struct {
		strategy any
		want     int
	}{
		"fixed delay":                      {fixed, 3},
		"exponential":                      {exponential, 7},
		"no retry":                         {strategies.NoRetry[int](), 0},
		"best effort":                      {best.WithBackoff(fixed.BackoffTime), strategies.Unlimited},
		"embedded":                         {embeds{best}, strategies.Unlimited},
		"immediate":                        {strategies.ReasonAware[int](classify, best).Immediate(), strategies.Unlimited},
		"pushback":                         {strategies.HonorPushback[int](best.WithMaxRetries(7)), 7},
		"policy":                           {strategies.ReasonAware(classify, nil).WithMaxWaiting(9), strategies.Unlimited},
		"policy of FLIP":                   {strategies.PolicyOf[int](fixed).WithJitter(nil), 3},
		"policy of no retry":               {strategies.PolicyOf(strategies.NoRetry[int]()), 0},
		"wrapper":                          {wraps{hidesAll{wraps{hidesAll{fixed}}}}, 3},
		"policy of a wrapper":              {strategies.PolicyOf[int](wraps{hidesAll{fixed}}), 3},
		"wrapper that forgets":             {hidesAll{fixed}, unknown},
		"policy of a wrapper that forgets": {strategies.PolicyOf[int](hidesAll{fixed}), unknown},
		"func":                             {byFunc, unknown},
		"policy of a func":                 {strategies.ReasonAware[int](classify, byFunc), unknown},
		"nil":                              {nil, unknown},
	} {
		if s, ok := tt.strategy.(strategies.Retry[int]); ok {
			tt.strategy = decision.StepsOf(strategies.PolicyOf(s)).Given
		}
		n, ok := decision.MaxRetriesOf(tt.strategy)
		assert.Equal(t, tt.want != unknown, ok, name)
		assert.Equal(t, max(tt.want, 0), n, name)
	}
}

// A BestEffort with a limit still does not repeat a call that may have taken effect.
func TestBestEffortWithMaxRetries(t *testing.T) {
	unsafe := predicates.NewReason("TEST", false, false)
	s := strategies.BestEffort[int]().WithMaxRetries(2)
	n, ok := decision.MaxRetriesOf(s)
	assert.True(t, ok)
	assert.Equal(t, 2, n)
	for number, want := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		for _, idempotent := range []bool{true, false} {
			a := &predicates.Attempt[int]{Number: number, Reason: unsafe, Idempotent: idempotent}
			action, err := s.Decide(t.Context(), a)
			assert.NoError(t, err)
			assert.Equal(t, want && idempotent, action.Retry, "attempt %d, idempotent: %t", number, idempotent)
		}
	}
	assert.Equal(t, strategies.Unlimited, strategies.BestEffort[int]().MaxRetries())
}
