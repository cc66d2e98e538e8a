package message

import "runtime"

// FindLost returns a message that takes the place of m, and finds out if a step of the
// pipeline drops it. The message is lost when it is garbage collected unsettled, with all
// messages that [With] and [Split] made from it. Then m is settled as Failed, with
// [ErrLost]. Without FindLost a dropped message waits for the end of its lease, if its
// source has leases.
//
// FindLost is for tests and debugging. It takes about half a microsecond and an
// allocation, and finds a loss when the garbage collector runs.
func FindLost[T any](m Message[T]) Message[T] {
	if !m.Pending() {
		return m
	}
	watched := Watch(m, m.a.resolve)
	runtime.AddCleanup(watched.a, func(a *acknowledgement) { a.resolve(Settlement{Kind: Failed, Err: ErrLost}) }, m.a)
	return watched
}

// Watch returns a message that takes the place of m. When it is settled, settle is called
// with the settlement, and must settle m.
func Watch[T any](m Message[T], settle func(Settlement)) Message[T] {
	a := &acknowledgement{settle: settle}
	if m.a != nil {
		if m.a.whole != nil {
			a.whole = &whole{of: m.a} // for NoteUnsafeToRepeat
		}
		a.meta, a.delivery = m.a.meta, m.a.delivery
		isPart := m.a.part != 0
		if a.meta != nil && isPart {
			meta := m.Meta() // with the id of the part: history adds it only for a part
			a.meta = &meta
		}
	}
	return Message[T]{m.Value, a}
}
