package strategies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// HonorPushback returns a strategy that follows inner, within the bounds that the server
// sets:
//
//	server demands   inner wants a retry   inner does not
//	nothing          after its own delay   no retry
//	a delay          after exactly that    no retry
//	never            no retry              no retry, and inner is not asked
//
// A demand is read from the error or the results ([predicates.ServerPushback]), or by the
// functions in more, if it has another form. The first demand found counts. The delay
// replaces inner's, without jitter. It is not a permission: inner decides whether the
// call may be repeated.
//
// An operator keeps the wait, up to the element's deadline, even when the input ends: the
// last attempt, which it makes at once for other elements that wait, comes after it. A
// delay that the element's time does not cover makes no attempt: the element waits for
// its deadline, or ends at once with asyncop.WithEarlyTimeout.
//
// [ReasonAware] does this to every strategy, so HonorPushback is needed only to pass more, and for a strategy that is called by another.
//
// This is gRPC's A6, Client Retries, except that A6 starts its own delays from the
// beginning after a retry that was demanded; here they depend on the number of attempts
// alone.
//
// HonorPushback panics if inner is nil. It is safe for concurrent use if inner is.
func HonorPushback[OUT any](
	inner ReasonStrategy[OUT], more ...func(a *predicates.Attempt[OUT]) (delay time.Duration, ok bool),
) ReasonStrategy[OUT] {
	mustNotBeNil("HonorPushback", inner)
	for i, demand := range more {
		if demand == nil {
			panic(fmt.Sprintf("strategies: HonorPushback: nil function at index %d", i))
		}
	}
	return &pushback[OUT]{inner: inner, more: slices.Clone(more)}
}

type pushback[OUT any] struct {
	inner ReasonStrategy[OUT]
	more  []func(a *predicates.Attempt[OUT]) (time.Duration, bool)
}

func (s *pushback[OUT]) Unwrap() any { return s.inner }

func (s *pushback[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error) {
	delay, demanded := s.demand(a)
	if demanded && delay < 0 {
		return Action{}, nil
	}
	action, err := s.inner.Decide(ctx, a)
	if err == nil && action.Retry && demanded {
		action.Delay, action.Demanded = delay, true
	}
	return action, err
}

func (s *pushback[OUT]) demand(a *predicates.Attempt[OUT]) (time.Duration, bool) {
	if delay, ok := decision.PushbackOf(a); ok {
		return delay, true
	}
	for _, demand := range s.more {
		if delay, ok := demand(a); ok {
			return delay, true
		}
	}
	return 0, false
}
