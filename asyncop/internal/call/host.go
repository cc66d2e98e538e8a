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
	NilError error                     // takes the place of a nil error
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

// ---- The mailbox

// Ref refers to what an element waits for: the place of the element, and the turn of that. A turn never comes twice, so a reference
// whose turn is over finds nothing (law A2). The zero Ref refers to nothing.
type Ref struct {
	Place uint32
	Stamp gate.Stamp // of a call at a backend; it is here since there is room
	Turn  uint64
}

// Letter is a place in the mailbox. It is embedded in what is posted, so that posting allocates nothing.
type Letter struct {
	Next *Letter // in the mailbox, or in what Take has returned; a letter that is read is cut off before it is posted again

	Ref Ref // of the element that waits for it: written before the start, then read-only
}

// Mailbox hands letters to the loop: a lock-free stack that is taken whole, so posting costs one compare-and-swap and
// allocates nothing. A channel would cost more per completion and block when it is full.
type Mailbox struct {
	head atomic.Pointer[Letter] // newest first; any goroutine posts, the loop takes
}

// Post adds l, which must not be in the mailbox.
func (m *Mailbox) Post(l *Letter) {
	for {
		head := m.head.Load()
		l.Next = head
		if m.head.CompareAndSwap(head, l) {
			return
		}
	}
}

// PostAll adds letters that are chained from the newest to the oldest: the loop takes all of them, or none yet.
func (m *Mailbox) PostAll(newest, oldest *Letter) {
	for {
		head := m.head.Load()
		oldest.Next = head
		if m.head.CompareAndSwap(head, newest) {
			return
		}
	}
}

// Take empties the mailbox and returns what was in it, chained by Next, the oldest first.
func (m *Mailbox) Take() *Letter {
	if m.head.Load() == nil {
		return nil
	}
	var oldest *Letter
	for l := m.head.Swap(nil); l != nil; {
		next := l.Next
		l.Next, oldest = oldest, l
		l = next
	}
	return oldest
}

// Empty reports whether nothing is in the mailbox.
func (m *Mailbox) Empty() bool { return m.head.Load() == nil }

// ---- Sleep

// Sleeper lets a goroutine sleep until others have something for it. It is woken only if it sleeps, or is about to.
type Sleeper struct {
	Parked atomic.Bool   // the goroutine sleeps, or looks a last time whether it must
	C      chan struct{} // buffer of one: one wake-up is enough
}

// NewSleeper returns a Sleeper.
func NewSleeper() Sleeper { return Sleeper{C: make(chan struct{}, 1)} }

// Sleep returns when the sleeper is woken, or at once unless idle reports that there is nothing to do. It calls idle when
// others wake the sleeper already. It may wake spuriously.
func (s *Sleeper) Sleep(idle func() bool) {
	s.Parked.Store(true)
	if idle() {
		<-s.C
	}
	s.Parked.Store(false)
}

// IsParked reports whether the goroutine sleeps, or looks a last time whether it must. Called from any goroutine.
func (s *Sleeper) IsParked() bool { return s.Parked.Load() }

// WakeUp wakes the sleeper. Called from any goroutine.
func (s *Sleeper) WakeUp() {
	if s.Parked.Load() {
		select {
		case s.C <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}
