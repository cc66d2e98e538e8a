package strategies

import (
	"context"
	"time"
)

// Action is the decision of a [ReasonStrategy] about an attempt:
//
//	strategies.Action{}                 // no retry: the element ends with the outcome
//	strategies.RetryAfter(time.Second)
//	strategies.RetryAfter(0)            // at once
//	strategies.RetryAfter(0).WithBefore(refresh)
//	strategies.Action{}.WithError(err)  // no retry, and another error
type Action struct {
	// Retry makes another attempt after Delay.
	Retry bool
	// Delay is at least 0. The operator spreads it by the policy's [Jitter], unless it is
	// Demanded, and cuts it to the element's time.
	Delay time.Duration
	// Demanded means that a server demands Delay, for instance with Retry-After: the next
	// attempt follows after exactly Delay, without jitter, even if the input ends.
	Demanded bool

	// Err, if not nil, replaces the outcome. Without Retry the element fails with it;
	// with Retry it becomes the element's last error, which a timeout reports.
	Err error

	// Before, if not nil, is called right before the next attempt, if that is made, for
	// instance to refresh a route or to evict a cached plan. It may block. An error or
	// panic is the outcome of that attempt, in stage ClientDispatch.
	Before func(ctx context.Context) error
}

// RetryAfter returns the action to retry after delay; 0 means at once. A negative delay
// fails the element ([Failed]).
func RetryAfter(delay time.Duration) Action { return Action{Retry: true, Delay: delay} }

// WithError returns a with an error that replaces the outcome.
func (a Action) WithError(err error) Action {
	a.Err = err
	return a
}

// WithBefore returns a with a function to call right before the next attempt.
func (a Action) WithBefore(before func(ctx context.Context) error) Action {
	a.Before = before
	return a
}
