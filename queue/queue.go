package queue

import (
	"fmt"
	"iter"
)

// Queue holds the elements in flight, in input order, and releases them in the order of
// its kind: see [NewOrdered] and [NewUnordered]. It is owned by a single goroutine.
type Queue[V any] interface {
	// Put takes a slot for a pending record at the tail and returns it. It panics if the
	// queue is full.
	Put(v V) *Entry[V]

	// PutZero is Put of a zero V, whose fields the owner sets in place, so that a large V
	// is not copied.
	PutZero() *Entry[V]

	// PutControl takes a slot for a control element, which records do not cross. It
	// panics if the queue is full.
	PutControl(v V) *Entry[V]

	// Complete completes e. It panics if e is not pending.
	Complete(e *Entry[V])

	// Head returns the entry that may leave next, or nil. It stays the head until it is
	// popped.
	Head() *Entry[V]

	// Pop removes the head and frees its slot: the entry must not be used afterwards. It
	// panics if [Queue.Head] is nil.
	Pop()

	// First returns the oldest entry in input order, or nil.
	First() *Entry[V]

	// Len returns the number of slots taken, including control elements.
	Len() int

	// Cap returns the number of slots.
	Cap() int

	// All iterates in input order. The queue must not be changed meanwhile.
	All() iter.Seq[*Entry[V]]
}

// Entry is a slot of a [Queue]. It is valid until it is popped; then its memory is
// reused.
type Entry[V any] struct {
	// Value belongs to the owner: the queue does not read it.
	Value V

	prev, next *Entry[V] // input order; next also links free entries
	segment    *segment[V]
	state      entryState
}

// Next returns the entry that follows e in input order, or nil.
func (e *Entry[V]) Next() *Entry[V] { return e.next }

// Completed reports whether e is complete. Control elements are always complete.
func (e *Entry[V]) Completed() bool { return e.state != pending }

type entryState uint8

const (
	free entryState = iota // not in the queue
	pending
	done
	control // a wall
)

func (s entryState) String() string {
	return [...]string{"free", "pending", "done", "control"}[s]
}

// maxFree limits the entries kept for reuse.
const maxFree = 1024

// list is the base of both kinds.
type list[V any] struct {
	first, last *Entry[V]
	len, cap    int

	free    *Entry[V] // chained by next
	numFree int
}

func newList[V any](capacity int) list[V] {
	if capacity < 1 {
		panic(fmt.Sprintf("queue: capacity must be at least 1, got %d", capacity))
	}
	return list[V]{cap: capacity}
}

func (l *list[V]) First() *Entry[V] { return l.first }
func (l *list[V]) Len() int         { return l.len }
func (l *list[V]) Cap() int         { return l.cap }

func (l *list[V]) All() iter.Seq[*Entry[V]] {
	return func(yield func(*Entry[V]) bool) {
		for e := l.first; e != nil; e = e.next {
			if !yield(e) {
				return
			}
		}
	}
}

// push appends an entry with a zero value. It panics if the queue is full (law Q2).
func (l *list[V]) push(state entryState) *Entry[V] {
	if l.len == l.cap {
		panic(fmt.Sprintf("queue: put into a full queue of capacity %d", l.cap))
	}
	e := l.free
	if e == nil {
		e = new(Entry[V])
	} else {
		l.free, e.next = e.next, nil
		l.numFree--
	}
	e.state, e.prev = state, l.last
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
	l.len++
	return e
}

func (l *list[V]) remove(e *Entry[V]) {
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	l.len--
	*e = Entry[V]{} // for the garbage collector
	if l.numFree < maxFree {
		e.next, l.free = l.free, e
		l.numFree++
	}
}

// complete makes e complete. It panics if e is not pending, because e would leave twice.
func (l *list[V]) complete(e *Entry[V]) {
	if e.state != pending {
		panic(fmt.Sprintf("queue: complete of an entry that is %s, not pending", e.state))
	}
	e.state = done
}

// NewOrdered returns a queue whose entries leave in input order: the oldest entry leaves
// when it is complete. It panics for a capacity below 1.
func NewOrdered[V any](capacity int) Queue[V] {
	return &ordered[V]{list: newList[V](capacity)}
}

type ordered[V any] struct {
	list[V]
}

func (q *ordered[V]) PutZero() *Entry[V]   { return q.push(pending) }
func (q *ordered[V]) Complete(e *Entry[V]) { q.complete(e) }

func (q *ordered[V]) Put(v V) *Entry[V] {
	e := q.push(pending)
	e.Value = v
	return e
}

func (q *ordered[V]) PutControl(v V) *Entry[V] {
	e := q.push(control)
	e.Value = v
	return e
}

func (q *ordered[V]) Head() *Entry[V] {
	if e := q.first; e != nil && e.state != pending {
		return e
	}
	return nil
}

func (q *ordered[V]) Pop() {
	e := q.Head()
	if e == nil {
		panic("queue: pop without a complete head")
	}
	q.remove(e)
}
