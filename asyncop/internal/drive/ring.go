package drive

import (
	"context"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// ring is a bounded queue from one goroutine to another. Its methods do not wait: see
// call.Sleeper.
//
// A channel costs about five times as much: it takes a lock, and wakes a waiting
// goroutine for each value.
type ring[T any] struct {
	buf      []T            // its length is a power of two
	messages []call.Message // as long as buf, or nil if values lack messages

	_        [64]byte      // separates the fields of the goroutines
	head     atomic.Uint64 // number of values that were taken
	seenTail uint64        // owned by the taker: tail, when it last looked
	_        [64]byte
	tail     atomic.Uint64 // number of values that were put
	limit    uint64        // owned by the putter: tail of a full ring, when it last looked at head
	_        [64]byte

	ended   atomic.Bool // by the putter, after its last value
	stopped atomic.Bool // by any goroutine: values are not taken from now on
}

// newRing returns a ring for at least n values.
func newRing[T any](n int) *ring[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return &ring[T]{buf: make([]T, size), limit: uint64(size)}
}

// put appends v with its message, unless the ring is full.
func (r *ring[T]) put(v T, m call.Message) bool {
	tail := r.tail.Load()
	if tail == r.limit {
		r.limit = r.head.Load() + uint64(len(r.buf))
		if tail == r.limit {
			return false
		}
	}
	index := tail & uint64(len(r.buf)-1)
	r.buf[index] = v
	if r.messages != nil {
		r.messages[index] = m
	}
	r.tail.Store(tail + 1)
	return true
}

// take removes the oldest value, unless the ring is empty.
func (r *ring[T]) take() (v T, m call.Message, ok bool) {
	head := r.head.Load()
	if head == r.seenTail {
		r.seenTail = r.tail.Load()
		if head == r.seenTail {
			return v, m, false
		}
	}
	index := head & uint64(len(r.buf)-1)
	v = r.buf[index]
	var zero T
	r.buf[index] = zero
	if r.messages != nil {
		m = r.messages[index]
		r.messages[index] = call.Message{}
	}
	r.head.Store(head + 1)
	return v, m, true
}

// len returns the number of values, for both goroutines.
func (r *ring[T]) len() int {
	head := r.head.Load() // before tail, so that the difference is not negative
	return int(r.tail.Load() - head)
}

func (r *ring[T]) full() bool { return r.len() == len(r.buf) }

// halfEmpty reports whether to wake a goroutine that waits to put. To wake it for each
// free entry would be expensive.
func (r *ring[T]) halfEmpty() bool { return r.len() <= len(r.buf)/2 }

// exhausted reports whether the ring is empty for good.
func (r *ring[T]) exhausted() bool { return r.ended.Load() && r.len() == 0 }

// inlet is a ring from which the loop takes.
type inlet[T any] struct {
	ring     *ring[T]
	feeder   call.Sleeper  // the goroutine that puts
	slotTail atomic.Uint64 // the tail up to which values have a slot, by the last announceSlots

	// surplus is how many values may be put beyond slotTail. The feeder sets it.
	surplus atomic.Int64

	// Owned by the feeder. They describe the last fetch.
	asked         int    // values that it asked for
	firstTail     uint64 // tail at its start
	firstSlotTail uint64 // slotTail at its start
	freed         int    // slots that became free before its first value was put
	awaitsFirst   bool   // its first value was not put yet
}

func newInlet[T any](size int) inlet[T] {
	return inlet[T]{ring: newRing[T](size), feeder: call.NewSleeper()}
}

// put waits until the ring has space for v, and returns false if values are no longer
// taken. The caller wakes the loop.
func (i *inlet[T]) put(v T, m call.Message) bool {
	if i.awaitsFirst {
		i.awaitsFirst = false
		freed := int(i.slotTail.Load() - i.firstSlotTail) //nolint:gosec // counts that are close to each other
		i.freed = max(0, freed)                           // slotTail falls while a key is crowded: see Machine.FreeSlots
	}
	for !i.ring.stopped.Load() {
		if i.ring.put(v, m) {
			return true
		}
		i.feeder.Sleep(func() bool { return i.ring.full() && !i.ring.stopped.Load() })
	}
	return false
}

// take returns the next value, if any. The loop calls it.
func (i *inlet[T]) take() (v T, m call.Message, ok bool) {
	v, m, ok = i.ring.take()
	if ok && i.feeder.Parked.Load() && i.ring.halfEmpty() {
		i.feeder.WakeUp()
	}
	return v, m, ok
}

// announceSlots announces the free slots. The loop calls it.
func (i *inlet[T]) announceSlots(free int) {
	i.slotTail.Store(i.ring.head.Load() + uint64(free)) //nolint:gosec // it is not negative
	if i.feeder.Parked.Load() && i.mayFetch() {
		i.feeder.WakeUp()
	}
}

// freeSlots returns the number of free slots minus the values put for them. It is
// negative if values without a slot were put.
func (i *inlet[T]) freeSlots() int {
	return int(i.slotTail.Load() - i.ring.tail.Load()) //nolint:gosec // two counts that are close to each other
}

// awaitSlots waits until values may be fetched, and returns how many. It returns 0 if
// values are no longer taken or ctx has ended. The feeder calls it.
//
// Slots become free while values are fetched. So awaitSlots asks for more values than
// there are free slots. For example, 10 slots are free, and 4 slots became free during
// the last fetch. Then the surplus is 4, and 18 values are fetched:
//
//	10 for the free slots
//	4  for slots that become free during this fetch
//	4  for slots that become free during the next fetch; they wait in the ring
//
// So when a fetch begins, up to surplus values may have no slot, and freeSlots may be
// negative. awaitSlots waits until freeSlots + surplus > 0.
//
// The surplus is the number of slots that became free during the last fetch, before its
// first value was put. Later slots do not count: the values of the fetch may have freed
// them, so the surplus would feed on itself.
//
// The surplus is limited, because many slots become free during an idle time. The limit
// is the number of values of the last fetch. If all values that it asked for came, the
// limit is higher by twice the last surplus. Without this rule, a small fetch would keep
// the surplus small for ever.
func (i *inlet[T]) awaitSlots(ctx context.Context) int {
	tail := i.ring.tail.Load()
	limit := int(tail - i.firstTail) //nolint:gosec // counts that are close to each other
	if limit >= i.asked {
		limit += 2 * int(i.surplus.Load())
	}
	surplus := min(i.freed, limit)
	i.surplus.Store(int64(surplus))
	defer context.AfterFunc(ctx, i.feeder.WakeUp)()
	for !i.ring.stopped.Load() && ctx.Err() == nil {
		free := i.freeSlots()
		if free+surplus > 0 {
			i.asked = free + surplus + surplus
			i.firstTail = tail
			i.firstSlotTail = i.slotTail.Load()
			i.freed = 0
			i.awaitsFirst = true
			return i.asked
		}
		i.feeder.Sleep(func() bool { return !i.mayFetch() && !i.ring.stopped.Load() && ctx.Err() == nil })
	}
	return 0
}

func (i *inlet[T]) mayFetch() bool { return i.freeSlots()+int(i.surplus.Load()) > 0 }

// stop ends the inlet.
func (i *inlet[T]) stop() {
	i.ring.stopped.Store(true)
	i.feeder.WakeUp()
}

// outlet is a ring into which the loop puts. It wakes the reader after some results: see
// port.flush.
type outlet[T any] struct {
	ring        *ring[T]
	putterWaits atomic.Bool // for space
	wakeUp      func()      // wakes the loop
	reader                  // the goroutine that takes

	observed bool // the reader counts consumed values
}

type reader struct {
	call.Sleeper
	consumed atomic.Uint64 // number of consumed values
	stopped  chan struct{} // closed when the reader stops
}

func newOutlet[T any](size int, observed bool, wakeUp func()) *outlet[T] {
	return &outlet[T]{
		ring: newRing[T](size), reader: reader{Sleeper: call.NewSleeper(), stopped: make(chan struct{})}, wakeUp: wakeUp, observed: observed,
	}
}

// lookForSpace reports whether the loop should continue to put. Otherwise the reader will
// wake it. Parked is set, so that no wake-up is lost.
func (o *outlet[T]) lookForSpace() bool {
	o.putterWaits.Store(true)
	return o.ring.halfEmpty()
}

// next waits for a value. ok is false at the end.
func (o *outlet[T]) next() (v T, m call.Message, ok bool) {
	for {
		v, m, ok = o.ring.take()
		if ok {
			if o.putterWaits.Load() && o.ring.halfEmpty() {
				o.putterWaits.Store(false)
				o.wakeUp()
			}
			return v, m, true
		}
		if o.ring.exhausted() {
			return v, m, false
		}
		o.Sleep(func() bool { return o.ring.len() == 0 && !o.ring.ended.Load() })
	}
}

// noteConsumed notes that the reader has consumed the values that it has taken: the body
// has returned, or the next step has received them (law O1).
func (o *outlet[T]) noteConsumed() {
	if !o.observed {
		return
	}
	o.consumed.Store(o.ring.head.Load())
	if o.ring.halfEmpty() {
		o.wakeUp()
	}
}

// close ends the ring. The reader still gets its values.
func (o *outlet[T]) close() {
	o.ring.ended.Store(true)
	o.WakeUp()
}
