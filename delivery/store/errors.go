package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/weirflow/weir/internal/guard"
)

var (
	// ErrFull is matched by the error of Put if the store is full.
	ErrFull = errors.New("store: full")

	// ErrClosed is returned by a store that was closed.
	ErrClosed = guard.MarkPermanent(errors.New("store: closed"))
)

// LeaseError names the lost leases of a call: their messages were settled, purged or
// taken by another consumer. The other leases were served.
type LeaseError struct {
	Lost []Lease
}

const leaseLost = "store: the lease is lost"

func (e *LeaseError) Error() string {
	if len(e.Lost) == 0 {
		return leaseLost
	}
	l := e.Lost[0]
	s := fmt.Sprintf("%s: message %s of queue %q, fencing number %d", leaseLost, l.Entry, l.Queue, l.Fence)
	if more := len(e.Lost) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// PutError is the error of a [Consumer]'s Put, which may have stored some messages.
type PutError struct {
	Errs []error // of each message, in order; nil for a stored message
}

func (e *PutError) Error() string {
	var first error
	n := 0
	for _, err := range e.Errs {
		if err != nil {
			first = cmp.Or(first, err)
			n++
		}
	}
	if len(e.Errs) == 1 {
		return first.Error()
	}
	return fmt.Sprintf("%d of %d messages were not stored: %v", n, len(e.Errs), first)
}

// Unwrap returns the errors.
func (e *PutError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Errs), func(err error) bool { return err == nil })
}
