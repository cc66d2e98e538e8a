package strategies

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// BestEffortStrategy retries if that is safe, until the element's time runs out. It is
// safe for concurrent use.
//
// Embed it to override single reasons:
//
//	type strategy struct{ *strategies.BestEffortStrategy[Row] }
//
//	func (s strategy) Decide(ctx context.Context, a *predicates.Attempt[Row]) (strategies.Action, error) {
//		if a.Reason == predicates.CircuitBreakerOpen {
//			return strategies.Action{}, nil
//		}
//		return s.BestEffortStrategy.Decide(ctx, a)
//	}
type BestEffortStrategy[OUT any] struct {
	backoff       func(attempts int) time.Duration
	maxRetries    int
	refuseUnknown bool
}

// BestEffort returns the default strategy of RFC 0049:
//
//	                        reason allows non-idempotent retry   does not
//	idempotent call         retry                                retry
//	non-idempotent call     retry                                no retry
//
// A deduplicated call ([predicates.WithDeduplicated]) counts as idempotent.
//
// The delay is as in ExponentialBackoff(Unlimited, 1ms, 500ms, 2):
//
//	attempts made   1     2     3     4     5      6      7      8       9       10
//	delay           1ms   2ms   4ms   8ms   16ms   32ms   64ms   128ms   256ms   500ms
//
// The element's time is the only limit, unless WithMaxRetries sets another.
func BestEffort[OUT any]() *BestEffortStrategy[OUT] {
	return &BestEffortStrategy[OUT]{
		backoff:    ExponentialBackoff[OUT](Unlimited, time.Millisecond, 500*time.Millisecond, 2).BackoffTime,
		maxRetries: Unlimited,
	}
}

// WithBackoff returns a copy of s with other delays. backoff returns the delay after the
// given number of attempts, 1 at the first failure. It must not block or return a
// negative delay, and may be called concurrently. BackoffTime of another strategy fits:
//
//	strategies.BestEffort[Row]().WithBackoff(strategies.FixedDelay[Row](0, time.Second).BackoffTime)
//
// WithBackoff panics if backoff is nil.
func (s *BestEffortStrategy[OUT]) WithBackoff(backoff func(attempts int) time.Duration) *BestEffortStrategy[OUT] {
	mustNotBeNil("WithBackoff", backoff)
	c := *s
	c.backoff = backoff
	return &c
}

// WithMaxRetries returns a copy of s that allows n retries; the default is [Unlimited].
// Reasons that are always retried do not count. It panics if n is negative.
func (s *BestEffortStrategy[OUT]) WithMaxRetries(n int) *BestEffortStrategy[OUT] {
	if n < 0 {
		panic(fmt.Sprintf("strategies: BestEffort: negative maxRetries: %d", n))
	}
	c := *s
	c.maxRetries = n
	return &c
}

// RefuseUnknown returns a copy of s that never retries [predicates.Unknown]. The text of
// RFC 0049 requires that, but its algorithm, the default here, checks only idempotence
// and the reason's property.
func (s *BestEffortStrategy[OUT]) RefuseUnknown() *BestEffortStrategy[OUT] {
	c := *s
	c.refuseUnknown = true
	return &c
}

var _ decision.LimitedStrategy = (*BestEffortStrategy[any])(nil)

// MaxRetries returns the bound of WithMaxRetries, or [Unlimited].
func (s *BestEffortStrategy[OUT]) MaxRetries() int { return s.maxRetries }

// Decide implements [ReasonStrategy].
func (s *BestEffortStrategy[OUT]) Decide(_ context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	if a.Retries() >= s.maxRetries {
		return Action{}, nil
	}
	if s.refuseUnknown && a.Reason == predicates.Unknown {
		return Action{}, nil
	}
	if !a.Idempotent && !a.Reason.AllowsNonIdempotentRetry() {
		return Action{}, nil
	}
	return RetryAfter(s.backoff(a.Number)), nil
}
