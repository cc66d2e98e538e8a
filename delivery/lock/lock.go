// Package lock has locks that processes and machines share: each has an owner, a lease
// and a fencing number.
//
//	grant, err := locks.Acquire(ctx, "booking-17", worker, 10*time.Second)
//	if errors.Is(err, lock.ErrHeld) {
//		return http.StatusConflict
//	}
//	defer locks.Release(ctx, grant)
//
// # Guarantees
//
// At most one grant of a name is valid. A grant is valid until it is released, until
// another grant is given after its lease has ended, or until a day after its lease ended.
// The fencing number is higher with each grant of a name. An owner that was paused for
// longer than its lease cannot notice that in time, so the system that it writes to must
// refuse it: the SQL engines check a grant in the transaction of the write (their Guard),
// and other systems can compare fencing numbers.
//
// [Hold] keeps a lock while a function runs. Engines that have locks: ext/sqlite,
// ext/postgres, ext/jetstream and, for tests, delivery/memory. deliverytest.RunLocks
// checks locks of your own.
//
// # One machine
//
// [TryFile] and [HoldFile] lock a file for the processes of one machine, without an
// engine. The locks of ext/sqlite are for programs that have their queues in the same
// file: its Open makes the tables of queues, too.
package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrHeld is matched by the *[Holding] of a lock that another grant holds.
	ErrHeld = errors.New("lock: held")

	// ErrLost is returned for a grant that is not valid any longer.
	ErrLost = errors.New("lock: the grant is lost")
)

// Locks gives locks. Names and owners are UTF-8 without NUL, and not empty. Safe for
// concurrent use. After an error other than ErrHeld or ErrLost, the call may have taken
// effect.
type Locks interface {
	// Acquire gives the lock of a name to an owner for the time of the lease, or returns
	// a *[Holding] as an error, without waiting. The owner is only a text for people: the
	// same owner cannot acquire its lock a second time.
	Acquire(ctx context.Context, name, owner string, lease time.Duration) (Grant, error)

	// Extend makes the lease end after the time d from now. It returns ErrLost if the
	// grant is not valid. A grant whose lease has ended is valid until another grant is
	// given.
	Extend(ctx context.Context, g Grant, d time.Duration) error

	// Release releases the lock. It returns ErrLost if the grant is not valid.
	Release(ctx context.Context, g Grant) error

	// Held returns the locks whose names begin with prefix and whose leases have not
	// ended, sorted by name.
	Held(ctx context.Context, prefix string) ([]Holding, error)
}

// Grant is the right to a lock.
type Grant struct {
	Name, Owner string
	Fence       uint64 // the fencing number: from 1, higher with each grant of the name
}

// Holding is a lock that is held. It is the error of Acquire for such a lock.
type Holding struct { //nolint:errname // Held returns it, too
	Grant
	For time.Duration // the rest of the lease
}

func (h *Holding) Error() string {
	return fmt.Sprintf("%v: %q, by %q, for another %v at most", ErrHeld, h.Name, h.Owner, h.For)
}

// Unwrap returns [ErrHeld].
func (*Holding) Unwrap() error { return ErrHeld }
