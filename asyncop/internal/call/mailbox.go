package call

import "sync/atomic"

// Letter is a place in the mailbox. It is embedded in what is posted, so that posting allocates nothing.
type Letter[E any] struct {
	next *Letter[E] // in the mailbox

	// Entry is that of the element which waits for this letter; the zero value if none does any more. Owned by the loop.
	Entry E
}

// Mailbox hands letters to the loop: a lock-free stack that is taken whole, so posting costs one compare-and-swap and
// allocates nothing. A channel would cost more per completion and block when it is full.
type Mailbox[E any] struct {
	head atomic.Pointer[Letter[E]] // newest first; any goroutine posts, the loop takes
}

// Post adds l, which must not be in the mailbox.
func (m *Mailbox[E]) Post(l *Letter[E]) {
	for {
		head := m.head.Load()
		l.next = head
		if m.head.CompareAndSwap(head, l) {
			return
		}
	}
}

// PostAll adds letters that are chained from the newest to the oldest: the loop takes all of them, or none yet.
func (m *Mailbox[E]) PostAll(newest, oldest *Letter[E]) {
	for {
		head := m.head.Load()
		oldest.next = head
		if m.head.CompareAndSwap(head, newest) {
			return
		}
	}
}

// Take empties the mailbox and returns what was in it, oldest first: see [Letter.Unchain].
func (m *Mailbox[E]) Take() *Letter[E] {
	if m.head.Load() == nil {
		return nil
	}
	var oldest *Letter[E]
	for l := m.head.Swap(nil); l != nil; {
		next := l.next
		l.next, oldest = oldest, l
		l = next
	}
	return oldest
}

// Unchain takes l from the chain that Take has returned, and returns the rest. After that l may be posted again.
func (l *Letter[E]) Unchain() (rest *Letter[E]) {
	rest, l.next = l.next, nil
	return rest
}

// Empty reports whether nothing is in the mailbox.
func (m *Mailbox[E]) Empty() bool { return m.head.Load() == nil }
