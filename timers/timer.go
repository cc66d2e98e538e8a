package timers

// Timer is what a [Heap] or [Service] arms. Embed one in whatever waits; the zero value is not armed. A Timer may be
// armed in one heap at a time, and must not be copied while it is.
type Timer[V any] struct {
	// Value is the owner's: set it before the timer is armed, usually to what the timer is part of.
	Value V

	position int32 // 1 + index in the heap; 0: not armed
}

// Armed reports whether the timer is in a heap.
func (t *Timer[V]) Armed() bool { return t.position != 0 }
