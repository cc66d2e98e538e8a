package message

import "runtime"

// FindLost returns a message that takes the place of m. If it, and all messages that
// [With] and [Split] made from it, are garbage collected unsettled, a step of the
// pipeline has dropped it: m is settled as Failed, with [ErrLost]. Without FindLost such
// a message waits for the end of its lease, if its source has leases.
//
// It is for tests and debugging: it takes about half a microsecond and an allocation, and
// finds a loss when the garbage collector runs.
func FindLost[T any](m Message[T]) Message[T] {
	if !m.Pending() {
		return m
	}
	watched := Watch(m, m.a.resolve)
	runtime.AddCleanup(watched.a, func(a *acknowledgement) { a.resolve(Settlement{Kind: Failed, Err: ErrLost}) }, m.a)
	return watched
}

// Watch returns a message that takes the place of m: settle gets its settlement, and must
// settle m.
func Watch[T any](m Message[T], settle func(Settlement)) Message[T] {
	a := &acknowledgement{settle: settle}
	if m.a != nil {
		if m.a.whole != nil {
			a.whole = &whole{of: m.a} // for NoteUnsafeToRepeat
		}
		a.meta, a.delivery = m.a.meta, m.a.delivery
		if a.meta != nil && m.a.part != 0 { // the watched message is not a part, so it needs the id of the part
			meta := m.Meta()
			a.meta = &meta
		}
	}
	return Message[T]{m.Value, a}
}
