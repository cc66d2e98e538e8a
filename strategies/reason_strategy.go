package strategies

import (
	"context"

	"github.com/weirflow/weir/predicates"
)

// ReasonStrategy decides over a retry knowing everything: the element, the stage
// and the reason, whether the call may happen twice, and what happened before. It
// is the RetryStrategy of RFC 0049. [BestEffort] is the one to start from;
// [ReasonAware] hands one to an operator.
//
// It is asked only about outcomes that a classifier named a reason for, and never
// about rejections, about reasons that are always retried, or when nobody retries
// any more.
type ReasonStrategy[OUT any] interface {
	// Decide returns what to do about the attempt a. It may block, on I/O for
	// instance, without holding up any other element; ctx ends with the element. An
	// operator may call it from several goroutines at once, at most as many as it has
	// slots; calls that go on after ctx has ended count, and others wait for them. An error or a panic
	// means no retry, and is joined to the element's error.
	//
	// a is good for the duration of the call and must not be changed.
	Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)
}

// ReasonStrategyFunc is a func as a [ReasonStrategy].
type ReasonStrategyFunc[OUT any] func(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)

// Decide calls f.
func (f ReasonStrategyFunc[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	return f(ctx, a)
}

// Immediate returns s with the promise that it never blocks: an operator then
// calls it on its loop, one call at a time, which saves a goroutine's work. The
// strategies of this package need no such promise; a type that embeds one of them
// does. Immediate panics if s is nil.
func Immediate[OUT any](s ReasonStrategy[OUT]) ReasonStrategy[OUT] {
	mustNotBeNil("Immediate", s)
	return immediate[OUT]{s}
}

type immediate[OUT any] struct{ ReasonStrategy[OUT] }

func (s immediate[OUT]) Unwrap() any { return s.ReasonStrategy }

// decidesAtOnce reports whether s is known not to block: the strategies of this package, as far as what they wrap does not,
// and what [Immediate] returned. A type that embeds one of them overrides its Decide, so it counts as blocking.
func decidesAtOnce[OUT any](s ReasonStrategy[OUT]) bool {
	switch s := s.(type) {
	case *BestEffortStrategy[OUT], immediate[OUT]:
		return true
	case *pushback[OUT]:
		return decidesAtOnce(s.inner)
	}
	return false
}
