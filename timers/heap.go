package timers

import (
	"fmt"
	"math"
	"time"
)

// Heap orders timers by due time, and those with equal due times by the order in which they were armed. The zero value
// is empty and ready. It holds at most 2³¹−1 timers.
//
// A Heap is owned by one goroutine.
type Heap[V any] struct {
	items []item[V]
	armed uint64 // timers armed so far: orders equal due times
}

// item keeps the whole order inline: a comparison touches no timer, so it misses no cache beyond the heap's own.
type item[V any] struct {
	due   time.Duration
	seq   uint64
	timer *Timer[V]
}

// arity 4: half as deep as a binary heap, and the children of a node share cache lines.
const arity = 4

// keepItems is how many places an emptied heap keeps; what a burst took beyond them is given back.
const keepItems = 1024

func (a *item[V]) before(b *item[V]) bool {
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

// Len returns the number of armed timers.
func (h *Heap[V]) Len() int { return len(h.items) }

// Arm adds t with the given due time. It panics if t is armed already, or if 2³¹−1 timers are.
func (h *Heap[V]) Arm(t *Timer[V], due time.Duration) {
	if t.position != 0 {
		panic("timers: arm of a timer that is armed")
	}
	if len(h.items) == math.MaxInt32 {
		panic(fmt.Sprintf("timers: more than %d timers armed", math.MaxInt32))
	}
	h.armed++
	h.items = append(h.items, item[V]{})
	h.up(len(h.items)-1, item[V]{due: due, seq: h.armed, timer: t})
}

// Cancel removes t and reports whether it was armed. It panics if t is armed in another heap.
func (h *Heap[V]) Cancel(t *Timer[V]) bool {
	if t.position == 0 {
		return false
	}
	if i := int(t.position) - 1; i >= len(h.items) || h.items[i].timer != t {
		panic("timers: cancel of a timer that is armed in another heap")
	}
	h.remove(int(t.position) - 1)
	return true
}

// Due returns the due time of t; ok is false if t is not armed. t must not be armed in another heap.
func (h *Heap[V]) Due(t *Timer[V]) (due time.Duration, ok bool) {
	if t.position == 0 {
		return 0, false
	}
	return h.items[t.position-1].due, true
}

// Next returns the earliest due time; ok is false if no timer is armed.
func (h *Heap[V]) Next() (due time.Duration, ok bool) {
	if len(h.items) == 0 {
		return 0, false
	}
	return h.items[0].due, true
}

// Peek returns the timer that is due first without removing it, or nil if no timer is armed.
func (h *Heap[V]) Peek() *Timer[V] {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0].timer
}

// Pop removes and returns the timer that is due first, whether or not its time has come, or nil if no timer is armed.
func (h *Heap[V]) Pop() *Timer[V] {
	if len(h.items) == 0 {
		return nil
	}
	t := h.items[0].timer
	h.remove(0)
	return t
}

func (h *Heap[V]) remove(i int) {
	h.items[i].timer.position = 0
	last := len(h.items) - 1
	moved := h.items[last]
	h.items[last] = item[V]{}
	h.items = h.items[:last]
	switch {
	case i == last:
	case i > 0 && moved.before(&h.items[(i-1)/arity]):
		h.up(i, moved)
	default:
		h.down(i, moved)
	}
	if last == 0 && cap(h.items) > keepItems {
		h.items = nil
	}
}

// up places it at i or above; the place i is free.
func (h *Heap[V]) up(i int, it item[V]) {
	for i > 0 {
		parent := (i - 1) / arity
		if !it.before(&h.items[parent]) {
			break
		}
		h.place(i, h.items[parent])
		i = parent
	}
	h.place(i, it)
}

// down places it at i or below; the place i is free.
func (h *Heap[V]) down(i int, it item[V]) {
	n := len(h.items)
	for {
		first := i*arity + 1
		if first >= n {
			break
		}
		least := first
		for c := first + 1; c < min(first+arity, n); c++ {
			if h.items[c].before(&h.items[least]) {
				least = c
			}
		}
		if !h.items[least].before(&it) {
			break
		}
		h.place(i, h.items[least])
		i = least
	}
	h.place(i, it)
}

func (h *Heap[V]) place(i int, it item[V]) {
	h.items[i] = it
	it.timer.position = int32(i + 1)
}
