package strategies

import (
	"context"

	"github.com/weirflow/weir/predicates"
)

// ReasonStrategy decides about a retry and sees the whole attempt. It is the
// RetryStrategy of RFC 0049. [ReasonAware] makes a policy of it, for an operator.
//
// It is called only for outcomes with a reason, but not for rejections, for reasons that
// are always retried, or after the operator has stopped retrying. A wrapper should have a
// method Unwrap() any that returns the inner strategy, so that an operator finds its
// MaxRetries() int.
type ReasonStrategy[OUT any] interface {
	// Decide returns the action after the attempt a. It may block, on I/O for instance:
	// other elements do not wait for it. ctx ends with the element. It has the values of
	// the attempt's context: values of observers, the element's message, and the
	// attempt's number.
	//
	// An operator may call it from several goroutines at once, at most twice as many as
	// it has slots. Calls that still run after ctx has ended count; more calls fail. An
	// error or a panic means no retry, and is joined to the element's error.
	//
	// a must not be changed, and must not be kept after the call.
	Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)
}

// ReasonStrategyFunc is a function as a [ReasonStrategy].
type ReasonStrategyFunc[OUT any] func(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)

// Decide calls f.
func (f ReasonStrategyFunc[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	return f(ctx, a)
}

// decidesAtOnce reports whether s is known not to block. Strategies of this package do
// not, unless they wrap another. A type that embeds one may override Decide: see
// [Policy.Immediate].
func decidesAtOnce[OUT any](s ReasonStrategy[OUT]) bool {
	switch s := s.(type) {
	case *BestEffortStrategy[OUT]:
		return true
	case *pushback[OUT]:
		return decidesAtOnce(s.inner)
	}
	return false
}
