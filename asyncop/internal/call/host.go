package call

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// Host is what the tokens of an operator share. E is what the loop knows an element by.
type Host struct {
	// Written once before the start, then read-only.
	User     context.Context         //nolint:containedctx // the user's
	Life     context.Context         //nolint:containedctx // the operator's, derived from User
	Cancel   context.CancelCauseFunc // ends Life
	Values   context.Context         //nolint:containedctx // User without its end
	RealTime bool                    // the clock is the real one
	Clock    Clock
	Run      func(task func())         // has task done by a worker
	Panicked func(recovered any) error // makes an error of a panic, or of Goexit: see package guard
	NilError error                     // stands for a nil error
	Backend  gate.Backend              // that is called; nil: any
	Place    gate.Place                // at the backend; nil: none
	Around   Reporter                  // of the call that the operator runs inside of; nil: of none

	_ [64]byte // what others look at for each element is kept apart from what the loop writes for each

	// Used by any goroutine.
	Sleeper   // the loop's
	_         [64]byte
	Mail      Mailbox     // to the loop
	Suspended atomic.Bool // what is in flight is left to the final checkpoint: nothing begins any more
	late      atomic.Int64
	freed     atomic.Int64
}

// Clock reads the clock of an operator. Instants are durations since its start.
type Clock interface {
	Now() time.Duration
	Time(at time.Duration) time.Time
}

// LeavePlace gives the backend's permit of a call back that is over.
func (h *Host) LeavePlace(stamp gate.Stamp) {
	if h.Place != nil {
		h.Place.Release(stamp)
	}
}

// RestPlace says to the backend that nothing begins any more.
func (h *Host) RestPlace() {
	if h.Place != nil {
		h.Place.Settle(h.Clock.Time(h.Clock.Now()), false)
	}
}

// Cancelled reports whether the operator must end now, whether the loop knows or not. The user's context is asked itself: what
// is derived from it ends a moment later, and upstream may have noticed already.
func (h *Host) Cancelled() bool { return h.Life.Err() != nil || h.User.Err() != nil }

// Late returns how many completions came too late.
func (h *Host) Late() int64 { return h.late.Load() }

// Freed returns how many permits were given back by other goroutines than the loop and not taken yet.
func (h *Host) Freed() int64 { return h.freed.Load() }

// TakeFreed takes the permits that other goroutines have given back.
func (h *Host) TakeFreed() int {
	n := h.freed.Load()
	if n > 0 {
		h.freed.Add(-n)
	}
	return int(n)
}

// Post hands a letter to the loop and wakes it.
func (h *Host) Post(l *Letter) {
	h.Mail.Post(l)
	h.WakeUp()
}
