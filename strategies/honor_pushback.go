package strategies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// HonorPushback returns a strategy that follows inner and obeys the delays that servers
// demand:
//
//	server demands   inner retries                    inner does not retry
//	no delay         retry after the delay of inner   no retry
//	a delay          retry after exactly that delay   no retry
//	never            no retry; inner is not asked     no retry; inner is not asked
//
// A demand is found in the error or the results ([predicates.ServerPushback]), or by the
// functions in more. The first demand found counts. The delay is not spread by jitter.
// inner decides whether the call may be repeated.
//
// An operator keeps the wait even if the input ends. If the delay exceeds the element's
// time, no attempt is made: the element waits for its deadline, or ends at once with
// asyncop.WithEarlyTimeout.
//
// [ReasonAware] applies HonorPushback to every strategy. Use it yourself to pass more, or
// for a strategy that another calls.
//
// This follows gRPC's A6, Client Retries, except that A6 restarts its own delays after a
// demanded retry.
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

var _ decision.StrategyWrapper = (*pushback[any])(nil)

// Unwrap implements [decision.StrategyWrapper].
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
