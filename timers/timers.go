package timers

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// Timer is a timer for a [Heap] or [Service]. Embed it in the waiting object; the zero
// value is not armed. An armed Timer is in a single heap, and must not be copied.
type Timer[V any] struct {
	// Value belongs to the owner: set it before arming, usually to the object that embeds
	// the timer.
	Value V

	position int32 // 1 + index in the heap, or 0 if not armed
}

// Armed reports whether the timer is in a heap.
func (t *Timer[V]) Armed() bool { return t.position != 0 }

// Heap orders timers by due time, and timers with equal due times by the order of arming.
// The zero value is empty and ready to use. It holds at most 2³¹−1 timers. It is owned by
// a single goroutine.
type Heap[V any] struct {
	items []item[V]
	armed uint64 // timers armed so far: orders equal due times
}

// item has all that a comparison needs: reading timers would miss the cache.
type item[V any] struct {
	due   time.Duration
	seq   uint64
	timer *Timer[V]
}

// arity is 4: the heap is half as deep as a binary heap, and a node's children share
// cache lines.
const arity = 4

// keepItems is the largest capacity that an emptied heap keeps after a burst.
const keepItems = 1024

func (a *item[V]) before(b *item[V]) bool {
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

// Len returns the number of armed timers.
func (h *Heap[V]) Len() int { return len(h.items) }

// Arm adds t with the given due time. It panics if t is armed already, or if the heap is
// full.
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

// Cancel removes t and reports whether it was armed. It panics if t is armed in another
// heap.
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

// Due returns the due time of t; ok is false if t is not armed. t must not be armed in
// another heap.
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

// Peek returns the timer with the earliest due time, or nil if no timer is armed.
func (h *Heap[V]) Peek() *Timer[V] {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0].timer
}

// Pop removes and returns the timer with the earliest due time, even if it is not due
// yet, or nil if no timer is armed.
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

// up places it at i or above; index i is free.
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

// down places it at i or below; index i is free.
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

// Service is a [Heap] of timers on a clock. Its owner, an event loop, pops due timers and
// is woken when the next is due. A Service is owned by a single goroutine.
type Service[V any] struct {
	Heap[V]

	clock clock.Clock
	start time.Time
	wake  func()

	// alarm wakes the owner for the next timer, perhaps spuriously. It is an AfterFunc
	// because a clock.Mock deadlocks when it fires into a timer channel that was not
	// drained, and may fire a timer whose Stop returned true.
	alarm   *clock.Timer
	alarmAt time.Duration // when the alarm fires, if pending
	pending bool          // set, and not known to have fired

	// rang is set when the alarm fires, on any goroutine. A clock.Mock may fire, and so
	// end, an alarm that was reset after its time had come: then the alarm is not
	// pending, although alarmAt is in the future.
	rang atomic.Bool
}

// settled is how far the clock may advance while the alarm is set. If it advances more,
// the alarm is set again: a mock clock may advance between reading it and setting the
// alarm, which would then fire too late.
const settled = 100 * time.Microsecond

// NewService returns an empty service on c. wake is called, on any goroutine, when a
// timer may be due; it must not block. It may be called spuriously.
func NewService[V any](c clock.Clock, wake func()) *Service[V] {
	return &Service[V]{clock: c, start: c.Now(), wake: wake}
}

// Now returns the monotonic time since the service was made.
func (s *Service[V]) Now() time.Duration { return s.clock.Since(s.start) }

// Time returns the clock time of an instant.
func (s *Service[V]) Time(at time.Duration) time.Time { return s.start.Add(at) }

// PopDue removes and returns the earliest timer if it is due at now, otherwise nil.
func (s *Service[V]) PopDue(now time.Duration) *Timer[V] {
	if due, ok := s.Next(); !ok || due > now {
		return nil // law T1: never early
	}
	return s.Pop()
}

// Schedule ensures that wake is called when the earliest timer is due. It returns false,
// and the owner must not sleep, if a timer is due already.
func (s *Service[V]) Schedule() bool {
	due, ok := s.Next()
	return !ok || s.ScheduleAt(due)
}

// ScheduleAt ensures that wake is called at due or earlier, and returns false if due has
// passed. Owners with other deadlines pass the earliest of all.
func (s *Service[V]) ScheduleAt(due time.Duration) bool {
	if s.rang.Load() {
		s.rang.Store(false)
		s.pending = false
	}
	now := s.Now()
	for due > now {
		if s.pending && now < s.alarmAt && s.alarmAt <= due {
			return true // an early wake is cheaper than moving the alarm for every element
		}
		s.pending, s.alarmAt = true, due
		if s.alarm == nil {
			s.alarm = s.clock.AfterFunc(due-now, s.ring)
		} else {
			s.alarm.Reset(due - now)
		}
		before := now
		now = s.Now()
		if due > now && now-before < settled {
			return true
		}
		s.pending = false
	}
	return false
}

func (s *Service[V]) ring() {
	s.rang.Store(true)
	s.wake()
}

// Stop stops the alarm. wake is called at most once more, by an alarm that had already
// fired.
func (s *Service[V]) Stop() {
	if s.alarm != nil {
		s.alarm.Stop()
	}
	s.pending = false
}
