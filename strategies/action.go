package strategies

import (
	"context"
	"time"
)

// Action is what a [ReasonStrategy] wants done about an attempt. The zero value
// does nothing: the outcome is what the element ends with. [RetryAfter] and
// [DoNotRetry] make them, WithError and WithBefore refine them.
//
// An Action is a struct, and Retry is a field of its own, so that a delay of 0 is
// a delay and there is room for what is not thought of yet (RFC 0049 wraps its
// duration for the same purpose).
type Action struct {
	// Retry makes another attempt after Delay.
	Retry bool
	// Delay is at least 0. The operator spreads it by the policy's [Jitter], unless
	// it is Demanded, and cuts it to the time the element has left.
	Delay time.Duration
	// Demanded says that a server demands Delay, as by Retry-After: the next attempt
	// comes after exactly that, without jitter, also when the input ends meanwhile.
	Demanded bool

	// Err, if not nil, takes the place of the attempt's error, and of its results:
	// without Retry the element fails with it; with Retry it is remembered as the
	// element's last error, which a timeout tells.
	Err error

	// Before, if not nil, is called after the delay, right before the attempt that
	// Retry asks for: to refresh a route or to evict a cached plan. It may block. An
	// error or panic is the outcome of that attempt, in stage ClientDispatch, as
	// nothing was sent. It is not called if the attempt is not made.
	Before func(ctx context.Context) error
}

// RetryAfter returns the action to try again after delay; 0 is at once. A
// negative delay is refused by [Policy.Conclude].
func RetryAfter(delay time.Duration) Action { return Action{Retry: true, Delay: delay} }

// DoNotRetry returns the action that accepts the outcome.
func DoNotRetry() Action { return Action{} }

// WithError returns a with an error that takes the place of the outcome.
func (a Action) WithError(err error) Action {
	a.Err = err
	return a
}

// WithBefore returns a with something to do first, before the next attempt.
func (a Action) WithBefore(before func(ctx context.Context) error) Action {
	a.Before = before
	return a
}
