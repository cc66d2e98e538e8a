package asyncop

import "sync/atomic"

// mailbox hands completed attempts to the loop: a lock-free stack that is taken whole, so posting costs one
// compare-and-swap and allocates nothing. A channel would cost more per completion and block when it is full.
type mailbox[IN, OUT any] struct {
	head atomic.Pointer[attempt[IN, OUT]] // newest first; any goroutine posts, the loop takes
}

// post adds a, which must not be in the mailbox.
func (m *mailbox[IN, OUT]) post(a *attempt[IN, OUT]) {
	for {
		head := m.head.Load()
		a.next = head
		if m.head.CompareAndSwap(head, a) {
			return
		}
	}
}

// take empties the mailbox and returns what was in it, oldest first, chained by next.
func (m *mailbox[IN, OUT]) take() *attempt[IN, OUT] {
	if m.head.Load() == nil {
		return nil
	}
	var oldest *attempt[IN, OUT]
	for a := m.head.Swap(nil); a != nil; {
		next := a.next
		a.next, oldest = oldest, a
		a = next
	}
	return oldest
}

// takeOnly takes a, if nothing else is in the mailbox.
func (m *mailbox[IN, OUT]) takeOnly(a *attempt[IN, OUT]) bool {
	return m.head.Load() == a && a.next == nil && m.head.CompareAndSwap(a, nil)
}

func (m *mailbox[IN, OUT]) empty() bool { return m.head.Load() == nil }
