package call

import (
	"sync/atomic"

	"github.com/weirflow/weir/internal/gate"
)

// Ref refers to what an element waits for: the place of the element, and the turn of that. A turn never comes twice, so a reference
// whose turn is over finds nothing (law A2). The zero Ref refers to nothing.
type Ref struct {
	Place uint32
	Stamp gate.Stamp // of a call at a backend; it is here since there is room
	Turn  uint64
}

// Letter is a place in the mailbox. It is embedded in what is posted, so that posting allocates nothing.
type Letter struct {
	next *Letter // in the mailbox

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
		l.next = head
		if m.head.CompareAndSwap(head, l) {
			return
		}
	}
}

// PostAll adds letters that are chained from the newest to the oldest: the loop takes all of them, or none yet.
func (m *Mailbox) PostAll(newest, oldest *Letter) {
	for {
		head := m.head.Load()
		oldest.next = head
		if m.head.CompareAndSwap(head, newest) {
			return
		}
	}
}

// Take empties the mailbox and returns what was in it, oldest first: see [Letter.Unchain].
func (m *Mailbox) Take() *Letter {
	if m.head.Load() == nil {
		return nil
	}
	var oldest *Letter
	for l := m.head.Swap(nil); l != nil; {
		next := l.next
		l.next, oldest = oldest, l
		l = next
	}
	return oldest
}

// Unchain takes l from the chain that Take has returned, and returns the rest. After that l may be posted again.
func (l *Letter) Unchain() (rest *Letter) {
	rest, l.next = l.next, nil
	return rest
}

// Empty reports whether nothing is in the mailbox.
func (m *Mailbox) Empty() bool { return m.head.Load() == nil }
