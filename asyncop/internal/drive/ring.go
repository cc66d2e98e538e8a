package drive

import (
	"context"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// ring is a bounded queue between two goroutines: one puts, one takes. Its methods do not
// wait: see call.Sleeper.
//
// A channel of the same size costs about five times as much, because it takes a lock, and
// it wakes a goroutine that waits for each value.
type ring[T any] struct {
	buf      []T            // its length is a power of two
	messages []call.Message // as long as buf if the values are values of messages, otherwise nil

	_     [64]byte // keeps apart the fields that the two goroutines write
	head  atomic.Uint64
	ahead uint64 // owned by the goroutine that takes: the value of tail when it last looked
	_     [64]byte
	tail  atomic.Uint64
	limit uint64 // owned by the goroutine that puts: tail may reach it without another look at head
	_     [64]byte

	ended   atomic.Bool // no more values are put
	stopped atomic.Bool // no more values are taken
}

// newRing returns a ring for at least n values.
func newRing[T any](n int) *ring[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return &ring[T]{buf: make([]T, size), limit: uint64(size)}
}

// put appends v, with its message if it has one. It reports false if the ring is full.
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

// take removes the oldest value. ok is false if the ring is empty.
func (r *ring[T]) take() (v T, m call.Message, ok bool) {
	head := r.head.Load()
	if head == r.ahead {
		r.ahead = r.tail.Load()
		if head == r.ahead {
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

// len returns the number of values in the ring. Both goroutines may call it.
func (r *ring[T]) len() int {
	head := r.head.Load() // read first, because it never passes tail
	return int(r.tail.Load() - head)
}

func (r *ring[T]) full() bool { return r.len() == len(r.buf) }

// halfEmpty reports whether a goroutine that waits to put should be woken. Waking it for
// every free entry would cost more than the values.
func (r *ring[T]) halfEmpty() bool { return r.len() <= len(r.buf)/2 }

// exhausted reports whether the ring is empty and no more values are put.
func (r *ring[T]) exhausted() bool { return r.ended.Load() && r.len() == 0 }

// inlet is a ring from which the loop takes.
type inlet[T any] struct {
	ring   *ring[T]
	feeder call.Sleeper  // the goroutine that puts
	until  atomic.Uint64 // until tail reaches it, each value has a slot; it may be an older, lower value
	ahead  atomic.Int64  // values without a slot that may be put beyond until

	// Owned by the feeder.
	offered, brought uint64 // until and tail when awaitRoom was last called
	asked            int    // the result of that call
	freed            int    // slots that became free between that call and the first value
	isEmptyHanded    bool   // no value was put since that call
}

func newInlet[T any](size int) inlet[T] {
	return inlet[T]{ring: newRing[T](size), feeder: call.NewSleeper()}
}

// put waits until the ring has space for v. It reports false if no more values are taken.
// The caller wakes the loop.
func (i *inlet[T]) put(v T, m call.Message) bool {
	if i.isEmptyHanded {
		i.isEmptyHanded = false
		i.freed = int(i.until.Load() - i.offered) //nolint:gosec // counts that are close to each other
	}
	for !i.ring.stopped.Load() {
		if i.ring.put(v, m) {
			return true
		}
		i.feeder.Sleep(func() bool { return i.ring.full() && !i.ring.stopped.Load() })
	}
	return false
}

// take returns the next value. ok is false if there is none. Only the loop calls it.
func (i *inlet[T]) take() (v T, m call.Message, ok bool) {
	v, m, ok = i.ring.take()
	if ok && i.feeder.Parked.Load() && i.ring.halfEmpty() {
		i.feeder.WakeUp()
	}
	return v, m, ok
}

// offer announces the number of free slots. Only the loop calls it.
func (i *inlet[T]) offer(room int) {
	i.until.Store(i.ring.head.Load() + uint64(room)) //nolint:gosec // it is not negative
	if i.feeder.Parked.Load() && i.mayBring() {
		i.feeder.WakeUp()
	}
}

// room returns the number of free slots without a value for them. It is negative if there
// are more values than slots.
func (i *inlet[T]) room() int {
	return int(i.until.Load() - i.ring.tail.Load()) //nolint:gosec // two counts that are close to each other
}

// awaitRoom waits until there is a slot for a value, and returns the number of values to
// fetch. It returns 0 if no more values are taken, or ctx has ended. The goroutine that
// puts calls it.
//
// While values are fetched, slots become free. So awaitRoom asks for twice as many more
// values as slots became free during the last fetch. Slots that become free while values
// are put do not count, or the number would grow by itself. Nor do slots that became free
// in idle time: no more of them count than values came. If as many values came as were
// asked for, the number may grow to twice as many more as the last time.
func (i *inlet[T]) awaitRoom(ctx context.Context) int {
	tail := i.ring.tail.Load()
	most := int(tail - i.brought) //nolint:gosec // counts that are close to each other
	if most >= i.asked {
		most += 2 * int(i.ahead.Load())
	}
	ahead := max(0, min(i.freed, most))
	i.ahead.Store(int64(ahead))
	defer context.AfterFunc(ctx, i.feeder.WakeUp)()
	for !i.ring.stopped.Load() && ctx.Err() == nil {
		if room := i.room(); room+ahead > 0 {
			i.offered = i.until.Load()
			i.brought = tail
			i.asked = room + 2*ahead
			i.freed = 0
			i.isEmptyHanded = true
			return i.asked
		}
		i.feeder.Sleep(func() bool { return !i.mayBring() && !i.ring.stopped.Load() && ctx.Err() == nil })
	}
	return 0
}

func (i *inlet[T]) mayBring() bool { return i.room()+int(i.ahead.Load()) > 0 }

// stop ends the inlet: no more values are taken.
func (i *inlet[T]) stop() {
	i.ring.stopped.Store(true)
	i.feeder.WakeUp()
}

// outlet is a ring into which the loop puts. It wakes the reader afterwards.
type outlet[T any] struct {
	ring   *ring[T]
	behind atomic.Bool // the loop waits for space
	wakeUp func()      // wakes the loop
	reader             // the goroutine that takes

	observed bool // the reader settles values
}

// reader is a goroutine that takes from a ring.
type reader struct {
	call.Sleeper
	settled atomic.Uint64 // number of values that the reader has settled
	stopped chan struct{} // closed when the reader takes no more values
}

func newOutlet[T any](size int, observed bool, wakeUp func()) *outlet[T] {
	return &outlet[T]{
		ring: newRing[T](size), reader: reader{Sleeper: call.NewSleeper(), stopped: make(chan struct{})}, wakeUp: wakeUp, observed: observed,
	}
}

// mayPut reports whether the loop should continue to put. If not, the reader wakes the
// loop when it should. The loop calls it with Parked set, because a reader that made
// space before did not know that the loop waits.
func (o *outlet[T]) mayPut() bool {
	o.behind.Store(true)
	return o.ring.halfEmpty()
}

// next waits for a value. ok is false at the end of the ring.
func (o *outlet[T]) next() (v T, m call.Message, ok bool) {
	for {
		v, m, ok = o.ring.take()
		if ok {
			if o.behind.Load() && o.ring.halfEmpty() {
				o.behind.Store(false)
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

// settle notes that the reader has finished with the values that it has taken (law O1).
func (o *outlet[T]) settle() {
	if !o.observed {
		return
	}
	o.settled.Store(o.ring.head.Load())
	if o.ring.halfEmpty() {
		o.wakeUp()
	}
}

// close ends the ring. The reader gets the values that are in it.
func (o *outlet[T]) close() {
	o.ring.ended.Store(true)
	o.WakeUp()
}
