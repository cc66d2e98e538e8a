package strategies

import (
	"context"

	"github.com/weirflow/weir/predicates"
)

// ReasonStrategy decides about a retry and sees the whole attempt: the element, the
// stage, the reason, whether the call may happen twice, and the earlier attempts. It is
// the RetryStrategy of RFC 0049. Start from [BestEffort]; [ReasonAware] hands a
// ReasonStrategy to an operator.
//
// It is asked only about outcomes for which a classifier named a reason. It is not asked
// about rejections, about reasons that are always retried, or when the operator has
// stopped retrying. A strategy that wraps another should have a method Unwrap() any that
// returns it, so that an operator finds its MaxRetries() int.
type ReasonStrategy[OUT any] interface {
	// Decide returns the action after the attempt a. It may block, on I/O for instance:
	// other elements do not wait for it. ctx ends with the element. It has the values of
	// the attempt's context: the values of observers, the element's message, and the
	// attempt's number.
	//
	// An operator may call it from several goroutines at once, at most twice as many as
	// it has slots. Calls that run on after ctx has ended count: beyond that number,
	// further calls fail. An error or a panic means no retry, and is joined to the
	// element's error.
	//
	// a must not be changed, and must not be kept after the call.
	Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)
}

// ReasonStrategyFunc is a func as a [ReasonStrategy].
type ReasonStrategyFunc[OUT any] func(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)

// Decide calls f.
func (f ReasonStrategyFunc[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	return f(ctx, a)
}

// decidesAtOnce reports whether s is known not to block: the strategies of this package
// do not, unless what they wrap may. A type that embeds one of them overrides its Decide,
// so it counts as blocking: see [Policy.Immediate].
func decidesAtOnce[OUT any](s ReasonStrategy[OUT]) bool {
	switch s := s.(type) {
	case *BestEffortStrategy[OUT]:
		return true
	case *pushback[OUT]:
		return decidesAtOnce(s.inner)
	}
	return false
}
