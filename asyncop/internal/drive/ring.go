package drive

import (
	"context"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// ring is a bounded queue between two goroutines: one puts, one takes. Neither waits for the other here: see call.Sleeper.
//
// A channel of the same size costs some five times as much, since it locks; and it makes the goroutine that waits run at once,
// for one value.
type ring[T any] struct {
	buf      []T            // its length is a power of two
	messages []call.Message // as long, if the values are those of messages; else nil

	_     [64]byte // what the two sides write is kept apart
	head  atomic.Uint64
	ahead uint64 // the taker's: tail was there when it looked last
	_     [64]byte
	tail  atomic.Uint64
	limit uint64 // the putter's: tail may go there without another look at head
	_     [64]byte

	ended   atomic.Bool // set by the putter: nothing follows
	stopped atomic.Bool // set by the taker: nothing more is taken
}

// newRing returns a ring with places for at least n values.
func newRing[T any](n int) *ring[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return &ring[T]{buf: make([]T, size), limit: uint64(size)}
}

// put appends v, which is the value of m or of no message, and reports whether there was a place for it.
func (r *ring[T]) put(v T, m call.Message) bool {
	tail := r.tail.Load()
	if tail == r.limit {
		if r.limit = r.head.Load() + uint64(len(r.buf)); tail == r.limit {
			return false
		}
	}
	place := tail & uint64(len(r.buf)-1)
	if r.buf[place] = v; r.messages != nil {
		r.messages[place] = m
	}
	r.tail.Store(tail + 1)
	return true
}

// take removes the oldest value, if there is one.
func (r *ring[T]) take() (v T, m call.Message, ok bool) {
	head := r.head.Load()
	if head == r.ahead {
		if r.ahead = r.tail.Load(); head == r.ahead {
			return v, m, false
		}
	}
	place := head & uint64(len(r.buf)-1)
	var none T
	if v, r.buf[place] = r.buf[place], none; r.messages != nil {
		m, r.messages[place] = r.messages[place], call.Message{}
	}
	r.head.Store(head + 1)
	return v, m, true
}

// len returns the number of values held; both sides may ask.
func (r *ring[T]) len() int {
	head := r.head.Load() // first: it never passes tail
	return int(r.tail.Load() - head)
}

func (r *ring[T]) full() bool { return r.len() == len(r.buf) }

// halfEmpty reports whether a putter that waits should go on: waking it for every single place would cost more than the
// values do.
func (r *ring[T]) halfEmpty() bool { return r.len() <= len(r.buf)/2 }

// over reports whether nothing is left and nothing follows.
func (r *ring[T]) over() bool { return r.ended.Load() && r.len() == 0 }

// inlet is a ring from which the loop takes.
type inlet[T any] struct {
	ring   *ring[T]
	feeder call.Sleeper  // puts
	until  atomic.Uint64 // tail may go there, and each value has a slot; an older one is lower
	ahead  atomic.Int64  // values without one that may be put before

	// The feeder's.
	offered, brought uint64 // until and tail when room was awaited last
	asked            int    // what was returned then
	freed            int    // slots that became free from then until the first value came
	isEmptyHanded    bool   // none has come since
}

func newInlet[T any](places int) inlet[T] {
	return inlet[T]{ring: newRing[T](places), feeder: call.NewSleeper()}
}

// put waits for a place for v; false: nothing is taken any more. The caller wakes the loop.
func (i *inlet[T]) put(v T, m call.Message) bool {
	if i.isEmptyHanded {
		i.isEmptyHanded, i.freed = false, int(i.until.Load()-i.offered) //nolint:gosec // counts that are close to each other
	}
	for !i.ring.stopped.Load() {
		if i.ring.put(v, m) {
			return true
		}
		i.feeder.Sleep(func() bool { return i.ring.full() && !i.ring.stopped.Load() })
	}
	return false
}

// take returns the next value, if there is one. Called by the loop.
func (i *inlet[T]) take() (v T, m call.Message, ok bool) {
	v, m, ok = i.ring.take()
	if ok && i.feeder.Parked.Load() && i.ring.halfEmpty() {
		i.feeder.WakeUp()
	}
	return v, m, ok
}

// offer says for how many more than were taken there are slots. Called by the loop.
func (i *inlet[T]) offer(room int) {
	i.until.Store(i.ring.head.Load() + uint64(room)) //nolint:gosec // it is not negative
	if i.feeder.Parked.Load() && i.mayBring() {
		i.feeder.WakeUp()
	}
}

// room returns for how many values there are slots that nothing was put for. It is negative if values without one were put.
func (i *inlet[T]) room() int {
	return int(i.until.Load() - i.ring.tail.Load()) //nolint:gosec // two counts that are close to each other
}

// awaitRoom waits until there is a slot for a value, and returns for how many; 0: nothing is taken any more, or ctx has ended. Called by
// the goroutine that puts. While values are fetched, slots become free: it adds twice as many as did the last time. What becomes free while
// they are put does not count: the more were put, the more would be asked for. Nor does an idle time: no more slots count than values came;
// if all came that were asked for, twice as many more as the time before, so that it can grow.
func (i *inlet[T]) awaitRoom(ctx context.Context) int {
	tail := i.ring.tail.Load()
	most := int(tail - i.brought) //nolint:gosec // counts that are close to each other
	if most >= i.asked {
		most += 2 * int(i.ahead.Load())
	}
	ahead := max(0, min(i.freed, most))
	i.ahead.Store(int64(ahead)) // as many come at once at least
	defer context.AfterFunc(ctx, i.feeder.WakeUp)()
	for !i.ring.stopped.Load() && ctx.Err() == nil {
		if room := i.room(); room+ahead > 0 {
			i.offered, i.brought, i.asked, i.freed, i.isEmptyHanded = i.until.Load(), tail, room+2*ahead, 0, true
			return i.asked
		}
		i.feeder.Sleep(func() bool { return !i.mayBring() && !i.ring.stopped.Load() && ctx.Err() == nil })
	}
	return 0
}

func (i *inlet[T]) mayBring() bool { return i.room()+int(i.ahead.Load()) > 0 }

// stop takes nothing more.
func (i *inlet[T]) stop() {
	i.ring.stopped.Store(true)
	i.feeder.WakeUp()
}

// outlet is a ring into which the loop puts; then it wakes the reader.
type outlet[T any] struct {
	ring   *ring[T]
	behind atomic.Bool // the loop waits for a place
	wakeUp func()      // wakes the loop
	reader             // takes

	observed bool // the reader says what it is done with
}

// reader is a goroutine that takes from a ring.
type reader struct {
	call.Sleeper
	settled atomic.Uint64 // values that it is done with
	gone    chan struct{} // closed when it takes no more
}

func newOutlet[T any](places int, observed bool, wakeUp func()) *outlet[T] {
	return &outlet[T]{
		ring: newRing[T](places), reader: reader{Sleeper: call.NewSleeper(), gone: make(chan struct{})}, wakeUp: wakeUp, observed: observed,
	}
}

// mayPut reports whether the loop should go on putting; if not, it is woken when it should. Called by the loop, ready to be
// woken: a reader that made room before has not seen that the loop waits.
func (o *outlet[T]) mayPut() bool {
	o.behind.Store(true)
	return o.ring.halfEmpty()
}

// next waits for a value; ok is false if none follows.
func (o *outlet[T]) next() (v T, m call.Message, ok bool) {
	for {
		if v, m, ok = o.ring.take(); ok {
			if o.behind.Load() && o.ring.halfEmpty() {
				o.behind.Store(false)
				o.wakeUp()
			}
			return v, m, true
		}
		if o.ring.over() {
			return v, m, false
		}
		o.Sleep(func() bool { return o.ring.len() == 0 && !o.ring.ended.Load() })
	}
}

// settle says that the reader is done with what it has taken (law O1).
func (o *outlet[T]) settle() {
	if !o.observed {
		return
	}
	o.settled.Store(o.ring.head.Load())
	if o.ring.halfEmpty() {
		o.wakeUp()
	}
}

// close ends the ring: the reader finds that nothing follows.
func (o *outlet[T]) close() {
	o.ring.ended.Store(true)
	o.WakeUp()
}
