package queue

// NewOrdered returns a queue whose entries leave in input order: only the oldest may leave, once it is complete.
// It panics if capacity < 1.
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
