// Package fifo has a queue in a growing ring.
package fifo

import "iter"

// Queue is a first-in, first-out queue in a ring that grows as needed. The zero value is
// empty and ready to use. It is not safe for concurrent use.
type Queue[T any] struct {
	buf  []T // its length is 0 or a power of two
	head int
	n    int
}

// keepCap is the largest ring that an emptied queue keeps. It releases a larger ring,
// which a burst has left.
const keepCap = 1024

// Len returns the number of values held.
func (q *Queue[T]) Len() int { return q.n }

// Push appends v.
func (q *Queue[T]) Push(v T) {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.buf[(q.head+q.n)&(len(q.buf)-1)] = v
	q.n++
}

// Peek returns the oldest value. The queue must not be empty.
func (q *Queue[T]) Peek() T {
	if q.n == 0 {
		panic("fifo: peek into an empty queue")
	}
	return q.buf[q.head]
}

// Pop removes the oldest value and returns it. The queue must not be empty.
func (q *Queue[T]) Pop() T {
	v := q.Peek()
	var zero T
	q.buf[q.head] = zero // for the garbage collector
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	if q.n == 0 && len(q.buf) > keepCap {
		*q = Queue[T]{}
	}
	return v
}

func (q *Queue[T]) grow() {
	buf := make([]T, max(16, 2*len(q.buf)))
	n := copy(buf, q.buf[q.head:])
	copy(buf[n:], q.buf[:q.head])
	q.buf, q.head = buf, 0
}

// All iterates over the values, the oldest first. The queue must not be changed
// meanwhile.
func (q *Queue[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range q.n {
			if !yield(q.buf[(q.head+i)&(len(q.buf)-1)]) {
				return
			}
		}
	}
}
