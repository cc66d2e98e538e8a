package store

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/internal/guard"
)

var (
	// ErrFull is matched by the error of Put if the store has no room.
	ErrFull = errors.New("store: full")

	// ErrClosed is returned by a store that was closed.
	ErrClosed = guard.MarkPermanent(errors.New("store: closed"))

	// ErrLeaseLost is matched by every *[LeaseError].
	ErrLeaseLost = errors.New("store: the lease is lost")
)

// LeaseError names the leases of a call that are lost: the messages were settled, purged or taken by another consumer. The
// other leases of the call were served.
type LeaseError struct {
	Lost []Lease
}

func (e *LeaseError) Error() string {
	if len(e.Lost) == 0 {
		return ErrLeaseLost.Error()
	}
	l := e.Lost[0]
	s := fmt.Sprintf("%v: message %s of queue %q, fencing number %d", ErrLeaseLost, l.Entry, l.Queue, l.Fence)
	if more := len(e.Lost) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// Unwrap returns [ErrLeaseLost].
func (*LeaseError) Unwrap() error { return ErrLeaseLost }
