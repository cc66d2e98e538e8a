package memory

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.InOrder = (*Engine)(nil)

// parked is when a message behind its key's head can be taken.
var parked = never.Add(-time.Second)

// keyOrder has the messages of a key in the order of their positions.
type keyOrder struct {
	head    *memoryEntry // nil until TakeInOrder meets a message of the key
	entries positionHeap // including the head
}

// TakeInOrder implements [store.InOrder].
func (m *Engine) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = m.do(ctx, func() error {
		if err := storearg.Take(queue, limit, lease); err != nil {
			return err
		}
		q := m.queues[queue]
		if q == nil {
			return nil
		}
		q.keepOrder()
		now := m.clock.Now()
		for size := 0; len(taken) < limit && size < storearg.MaxBytes && q.ready.due(now); {
			e := q.ready.list[0]
			if e.isAside { // waits for its key again
				e.isAside = false
				q.addToOrder(e)
			}
			if !q.isHead(e) {
				q.set(e, parked)
				continue
			}
			size += len(e.Payload)
			taken = append(taken, m.grant(q, queue, e, now.Add(lease)))
		}
		return nil
	})
	return taken, err
}

// Replace implements [store.InOrder].
func (m *Engine) Replace(ctx context.Context, rs ...store.Replacement) error {
	leases, messages := make([]store.Lease, len(rs)), make([]store.Message, len(rs))
	for i := range rs {
		leases[i], messages[i] = rs[i].Lease, rs[i].Message
	}
	messages, err := stored(messages)
	invalid := errors.Join(storearg.Replace(rs...), err)
	return m.do(ctx, func() error {
		if invalid != nil {
			return invalid
		}
		for i, l := range leases {
			e := m.queues[l.Queue].leased(l)
			if e != nil && e.Meta.Key != messages[i].Meta.Key {
				return storearg.KeyChanged(e.Meta.ID, e.Meta.Key, messages[i].Meta.Key)
			}
		}
		return m.settleAll(leases, func(i int, q *memoryQueue, e *memoryEntry) { m.replace(leases[i].Queue, q, e, messages[i]) })
	})
}

// replace puts a message in an entry's place, or removes the entry if the message is
// already queued.
func (m *Engine) replace(queue string, q *memoryQueue, e *memoryEntry, message store.Message) {
	position, isQueued := q.ids[message.Identity()]
	if isQueued && position != e.Position {
		m.remove(queue, e)
		return
	}
	delete(q.ids, e.Identity())
	q.ids[message.Identity()] = e.Position
	due := m.clock.Now().Add(min(message.Delay, storearg.LongestDelay))
	e.Message = message
	e.Meta.Due, e.Delay = due, 0
	q.setLease(e, time.Time{})
	e.lapses = 0
	q.set(e, due)
}

// keepOrder makes the queue keep its messages ordered by position from now on.
func (q *memoryQueue) keepOrder() {
	if q.order != nil {
		return
	}
	q.order = map[string]*keyOrder{}
	for _, e := range q.entries {
		q.addToOrder(e)
	}
}

// isHead reports whether a message is the head of its key. If the key lacks a head, its
// first message becomes the head. A message without a key does not wait.
func (q *memoryQueue) isHead(e *memoryEntry) bool {
	if e.Meta.Key == "" {
		return true
	}
	o := q.order[e.Meta.Key]
	if o.head == nil {
		o.head = o.entries[0]
		o.head.isHead = true
	}
	return o.head == e
}

// addToOrder adds a message that was put, or that a rollback restores: it may have been
// the head of its key.
func (q *memoryQueue) addToOrder(e *memoryEntry) {
	if q.order == nil || e.Meta.Key == "" || e.isAside {
		return
	}
	o := q.order[e.Meta.Key]
	if o == nil {
		o = &keyOrder{}
		q.order[e.Meta.Key] = o
	}
	heap.Push(&o.entries, e)
	if !e.isHead {
		return
	}
	if o.head != nil {
		o.head.isHead = false
	}
	o.head = e
}

// removeFromOrder removes a message. If it was the head of its key, the next message
// becomes the head, due since now at the earliest, behind heads of other keys that have
// waited longer.
func (q *memoryQueue) removeFromOrder(e *memoryEntry, now time.Time) {
	if q.order == nil || e.Meta.Key == "" || e.isAside {
		return
	}
	o := q.order[e.Meta.Key]
	heap.Remove(&o.entries, e.inOrder)
	if len(o.entries) == 0 {
		delete(q.order, e.Meta.Key)
		return
	}
	if o.head != e {
		return
	}
	o.head = o.entries[0]
	o.head.isHead = true
	if o.head.at.Equal(parked) || o.head.at.Before(now) {
		q.set(o.head, now)
	}
}

// setAside makes a key continue without a message that is released for good.
func (q *memoryQueue) setAside(e *memoryEntry, now time.Time) {
	q.removeFromOrder(e, now)
	e.isAside, e.isHead = true, false
}

type positionHeap []*memoryEntry

func (h positionHeap) Len() int { return len(h) }

func (h positionHeap) Less(i, j int) bool { return cmp.Less(h[i].Position, h[j].Position) }

func (h positionHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].inOrder, h[j].inOrder = i, j
}

func (h *positionHeap) Push(x any) {
	e := x.(*memoryEntry)
	e.inOrder = len(*h)
	*h = append(*h, e)
}

func (h *positionHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
