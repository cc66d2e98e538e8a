package strategies

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// BestEffortStrategy tries again wherever that is safe, until the element's time
// runs out. Made by [BestEffort], it never changes and is safe for concurrent use.
//
// Embed it to override single reasons:
//
//	type strategy struct{ *strategies.BestEffortStrategy[Row] }
//
//	func (s strategy) Decide(ctx context.Context, a *predicates.Attempt[Row]) (strategies.Action, error) {
//		if a.Reason == predicates.CircuitBreakerOpen {
//			return strategies.DoNotRetry(), nil
//		}
//		return s.BestEffortStrategy.Decide(ctx, a)
//	}
type BestEffortStrategy[OUT any] struct {
	backoff       Backoff
	maxRetries    int
	refuseUnknown bool
}

// BestEffort returns the default strategy of RFC 0049:
//
//	                        reason allows non-idempotent retry   does not
//	idempotent call         retry                                retry
//	non-idempotent call     retry                                no retry
//
// The delay is [Exponential](1ms, 500ms, 2), with no limit but the element's
// time unless WithMaxRetries sets one. Stages play no part in it: a classifier has looked at them, and what it
// proved is in the reason.
func BestEffort[OUT any]() *BestEffortStrategy[OUT] {
	return &BestEffortStrategy[OUT]{backoff: Exponential(time.Millisecond, 500*time.Millisecond, 2), maxRetries: Unlimited}
}

// WithBackoff returns a copy of s with other delays. It panics if b is nil.
func (s *BestEffortStrategy[OUT]) WithBackoff(b Backoff) *BestEffortStrategy[OUT] {
	mustNotBeNil("WithBackoff", b)
	c := *s
	c.backoff = b
	return &c
}

// WithMaxRetries returns a copy of s that allows no further retry after n of them, for whatever reason; the default is
// [Unlimited]. About reasons that are always retried it is not asked. It panics if n is negative.
func (s *BestEffortStrategy[OUT]) WithMaxRetries(n int) *BestEffortStrategy[OUT] {
	if n < 0 {
		panic(fmt.Sprintf("strategies: BestEffort: negative maxRetries: %d", n))
	}
	c := *s
	c.maxRetries = n
	return &c
}

// RefuseUnknown returns a copy of s that never retries [predicates.Unknown], not
// even for idempotent calls. RFC 0049 contradicts itself here: the text about
// UNKNOWN says that it must not be retried, while its algorithm, the default here,
// looks at nothing but idempotence and the reason's property.
func (s *BestEffortStrategy[OUT]) RefuseUnknown() *BestEffortStrategy[OUT] {
	c := *s
	c.refuseUnknown = true
	return &c
}

// MaxRetries returns what WithMaxRetries set, or [Unlimited]: only the element's time bounds them.
func (s *BestEffortStrategy[OUT]) MaxRetries() int { return s.maxRetries }

// Decide implements [ReasonStrategy].
func (s *BestEffortStrategy[OUT]) Decide(_ context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	if a.Retries() >= s.maxRetries {
		return DoNotRetry(), nil
	}
	if s.refuseUnknown && a.Reason == predicates.Unknown {
		return DoNotRetry(), nil
	}
	if !a.Idempotent && !a.Reason.AllowsNonIdempotentRetry() {
		return DoNotRetry(), nil
	}
	return RetryAfter(s.backoff(a.Retries())), nil
}
