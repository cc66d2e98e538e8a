package queue

import "github.com/weirflow/weir/internal/fifo"

// NewUnordered returns a queue whose records leave in the order of completion within
// their segment: records do not cross a control element (law Q1). It panics for a
// capacity below 1.
func NewUnordered[V any](capacity int) Queue[V] {
	s := new(segment[V])
	return &unordered[V]{list: newList[V](capacity), oldest: s, newest: s}
}

type unordered[V any] struct {
	list[V]
	oldest, newest *segment[V] // ends of a chain of one or more segments; records join the newest and leave from the oldest
	spare          *segment[V] // an emptied segment for the next wall, or nil
}

// segment holds the records between two walls.
type segment[V any] struct {
	pending int
	ready   fifo.Queue[*Entry[V]] // completed records, in the order of completion
	wall    *Entry[V]             // ends the segment; nil for the newest
	next    *segment[V]           // nil for the newest
}

func (q *unordered[V]) Put(v V) *Entry[V] {
	e := q.PutZero()
	e.Value = v
	return e
}

func (q *unordered[V]) PutZero() *Entry[V] {
	e := q.push(pending)
	e.segment = q.newest
	e.segment.pending++
	return e
}

func (q *unordered[V]) PutControl(v V) *Entry[V] {
	e := q.push(control)
	e.Value = v
	s := q.spare
	if s == nil {
		s = new(segment[V])
	}
	q.spare = nil
	q.newest.wall, q.newest.next = e, s
	q.newest = s
	return e
}

func (q *unordered[V]) Complete(e *Entry[V]) {
	q.complete(e)
	e.segment.pending--
	e.segment.ready.Push(e)
}

func (q *unordered[V]) Head() *Entry[V] {
	s := q.oldest
	if s.ready.Len() > 0 {
		return s.ready.Peek()
	}
	if s.pending == 0 {
		return s.wall // nil if this is the newest segment
	}
	return nil
}

func (q *unordered[V]) Pop() {
	e := q.Head()
	if e == nil {
		panic("queue: pop without a complete head")
	}
	s := q.oldest
	if e.state == control {
		q.oldest = s.next
		s.wall, s.next = nil, nil
		q.spare = s
	} else {
		s.ready.Pop()
	}
	q.remove(e)
}
