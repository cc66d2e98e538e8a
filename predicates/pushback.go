package predicates

import (
	"fmt"
	"time"
)

// A ServerPushback is an error or a result with the delay after which its server may be
// called again. Reason-aware strategies obey it: see HonorPushback of package strategies.
//
// The term comes from gRPC's A6, Client Retries. HTTP's Retry-After is a pushback, too.
type ServerPushback interface {
	// RetryPushback returns the delay before the next attempt: 0 means at once, a
	// negative delay never. ok is false if the server does not demand a delay.
	RetryPushback() (delay time.Duration, ok bool)
}

// WithPushback adds to err the delay that the server demands: at least 0, or negative for
// never. It returns nil if err is nil.
func WithPushback(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &pushbackError{delay: max(delay, -1), err: err}
}

type pushbackError struct {
	delay time.Duration // negative for never
	err   error
}

var _ ServerPushback = (*pushbackError)(nil)

// Error returns the message with the demand.
func (e *pushbackError) Error() string {
	if e.delay < 0 {
		return fmt.Sprintf("%v (the server asks not to retry)", e.err)
	}
	return fmt.Sprintf("%v (the server asks to wait %v)", e.err, e.delay)
}

func (e *pushbackError) Unwrap() error { return e.err }

// RetryPushback implements [ServerPushback].
func (e *pushbackError) RetryPushback() (time.Duration, bool) { return e.delay, true }
