package predicates

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates/internal/joined"
)

// Never as a pushback is a server's demand not to be called again.
const Never = time.Duration(-1)

// A ServerPushback is an error or a result with which a server says when it may
// be called again. Reason-aware strategies heed it: see HonorPushback of package
// strategies.
//
// The notion is that of gRPC's A6, Client Retries; Retry-After of HTTP is another
// form of it.
type ServerPushback interface {
	// RetryPushback returns the delay that the server demands before the next
	// attempt: 0 is at once, a negative one is [Never]. With ok false it demands
	// nothing.
	RetryPushback() (delay time.Duration, ok bool)
}

// WithPushback returns err with the demand of the server that answered with it:
// a delay of at least 0, or [Never]. It returns nil if err is nil.
func WithPushback(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &PushbackError{Delay: max(delay, Never), Err: err}
}

// PushbackError is an error with a server's demand. See [WithPushback].
type PushbackError struct {
	Delay time.Duration // negative: never
	Err   error
}

var _ ServerPushback = (*PushbackError)(nil)

// Error returns the error's own message with the demand.
func (e *PushbackError) Error() string {
	if e.Delay < 0 {
		return fmt.Sprintf("%v (the server asks not to retry)", e.Err)
	}
	return fmt.Sprintf("%v (the server asks to wait %v)", e.Err, e.Delay)
}

// Unwrap returns Err.
func (e *PushbackError) Unwrap() error { return e.Err }

// RetryPushback implements [ServerPushback].
func (e *PushbackError) RetryPushback() (time.Duration, bool) { return e.Delay, true }

// PushbackOf returns the hardest of the demands that came with the outcome of a:
// those of its error, in every branch of a joined one, or of its results. An error
// or a result that demands nothing leaves it to the others.
func PushbackOf[OUT any](a *Attempt[OUT]) (delay time.Duration, ok bool) {
	if a.Err == nil {
		for _, result := range a.Results {
			if p, is := any(result).(ServerPushback); is {
				delay, ok = harder(delay, ok, p)
			}
		}
		return delay, ok
	}
	for _, err := range joined.Branches(a.Err) {
		for demands := false; err != nil && !demands; err = errors.Unwrap(err) {
			if p, is := joined.As[ServerPushback](err); is {
				if _, demands = p.RetryPushback(); demands {
					delay, ok = harder(delay, ok, p)
				}
			}
		}
	}
	return delay, ok
}

// harder returns the harder one of a demand, if there is one, and that of p.
func harder(delay time.Duration, ok bool, p ServerPushback) (time.Duration, bool) {
	d, demands := p.RetryPushback()
	switch {
	case !demands:
		return delay, ok
	case d < 0 || ok && delay < 0:
		return Never, true
	default:
		return max(delay, d), true
	}
}
