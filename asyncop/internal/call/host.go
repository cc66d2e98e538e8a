package call

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// Host is what the tokens of an operator share.
type Host struct {
	// Written once before the start, then read-only.
	User     context.Context         //nolint:containedctx // the user's
	Life     context.Context         //nolint:containedctx // the operator's, derived from User
	Cancel   context.CancelCauseFunc // ends Life
	Values   context.Context         //nolint:containedctx // User without its end
	RealTime bool                    // the clock is the real one
	Clock    Clock
	Run      func(task func()) // has task done by a worker
	Backend  gate.Backend      // that is called; nil: any
	Seat     gate.Seat         // at the backend; nil: none
	Around   Reporter          // of the call that the operator runs inside of; nil: of none

	_ [64]byte // what others look at for each element is kept apart from what the loop writes for each

	// Used by any goroutine.
	Sleeper   // the loop's
	_         [64]byte
	Mail      Mailbox      // to the loop
	Suspended atomic.Bool  // what is in flight is left to the final checkpoint: nothing begins any more
	Beside    atomic.Int64 // pieces of user code that run on workers for elements, which may leave them behind
	late      atomic.Int64
	freed     atomic.Int64
}

// ErrNil stands for a nil error passed to CompleteExceptionally.
var ErrNil = errors.New("asyncop: CompleteExceptionally was called with a nil error")

// Panicked makes an error of what recover returned; nil stands for runtime.Goexit.
func Panicked(recovered any) error { return guard.Recovered("asyncop", recovered) }

// OffLoop runs user code that may block for a moment on a goroutine of its own and waits
// for it, so that neither a panic nor runtime.Goexit reaches the caller (law A6).
func OffLoop(f func() error) error { return guard.Call(f, Panicked) }

// Clock reads the clock of an operator. Instants are durations since its start.
type Clock interface {
	Now() time.Duration
	Time(at time.Duration) time.Time
}

// LeaveSeat gives the backend's permit of a call back that is over.
func (h *Host) LeaveSeat(stamp gate.Stamp) {
	if h.Seat != nil {
		h.Seat.Release(stamp)
	}
}

// RestSeat notifies the backend that the operator begins no further attempt.
func (h *Host) RestSeat() {
	if h.Seat != nil {
		h.Seat.DoneAsking(h.Clock.Time(h.Clock.Now()), false)
	}
}

// Cancelled reports whether the operator must end now, whether the loop knows or not. The
// user's context is asked itself: what is derived from it ends a moment later, and
// upstream may have noticed already.
func (h *Host) Cancelled() bool { return h.Life.Err() != nil || h.User.Err() != nil }

// Late returns how many completions came too late.
func (h *Host) Late() int64 { return h.late.Load() }

// Freed returns how many permits were given back by other goroutines than the loop and
// not taken yet.
func (h *Host) Freed() int64 { return h.freed.Load() }

// TakeFreed takes the permits that other goroutines have given back.
func (h *Host) TakeFreed() int {
	n := h.freed.Load()
	if n > 0 {
		h.freed.Add(-n)
	}
	return int(n)
}

// ---- The mailbox

// Ref refers to the element that waits for a letter: the index of its slot, and the
// generation of the slot. A generation never comes twice, so a reference to an earlier
// one finds no slot (law A2). The zero Ref refers to no element.
type Ref struct {
	Index      uint32
	Stamp      gate.Stamp // of a call at a backend; it is here because it fits
	Generation uint64
}

// Letter is a place in the mailbox. It is embedded in what is posted, so that posting
// allocates nothing.
type Letter struct {
	Next *Letter // in the mailbox, or in what Take has returned; a letter that is read is cut off before it is posted again

	Ref Ref // of the element that waits for it: written before the start, then read-only
}

// Mailbox hands letters to the loop: a lock-free stack that is taken whole, so posting
// costs one compare-and-swap and allocates nothing. A channel would cost more per
// completion and block when it is full.
type Mailbox struct {
	head atomic.Pointer[Letter] // newest first, or closed; any goroutine posts, the loop takes
}

// closed is the head of a mailbox whose loop has ended.
var closed Letter

// Post puts letters into the mailbox and wakes the loop. They are not in it, and chained
// from the newest to the oldest: the loop takes all of them, or none yet.
func (h *Host) Post(newest, oldest *Letter) {
	for {
		head := h.Mail.head.Load()
		if head == &closed {
			return
		}
		oldest.Next = head
		if h.Mail.head.CompareAndSwap(head, newest) {
			break
		}
	}
	if h.Parked.Load() {
		h.WakeUp()
	}
}

// Take empties the mailbox and returns what was in it, chained by Next, the oldest first.
func (m *Mailbox) Take() *Letter {
	if m.head.Load() == nil {
		return nil
	}
	var oldest *Letter
	for l := m.head.Swap(nil); l != nil; {
		next := l.Next
		l.Next, oldest = oldest, l
		l = next
	}
	return oldest
}

// Close drops what is in the mailbox, and what still comes: the operator may be kept for
// ever, and that with it. Nothing is taken any more.
func (m *Mailbox) Close() { m.head.Store(&closed) }

// Empty reports whether nothing is in the mailbox.
func (m *Mailbox) Empty() bool { return m.head.Load() == nil }

// ---- Sleep

// Sleeper lets a goroutine sleep until others have something for it. It is woken only if
// it sleeps, or is about to.
type Sleeper struct {
	Parked atomic.Bool   // the goroutine sleeps, or looks a last time whether it must
	C      chan struct{} // buffer of one: one wake-up is enough
}

// NewSleeper returns a Sleeper.
func NewSleeper() Sleeper { return Sleeper{C: make(chan struct{}, 1)} }

// Sleep returns when the sleeper is woken, or at once unless idle reports that there is
// nothing to do. It calls idle when others wake the sleeper already. It may wake
// spuriously.
func (s *Sleeper) Sleep(idle func() bool) {
	s.Parked.Store(true)
	if idle() {
		<-s.C
	}
	s.Parked.Store(false)
}

// IsParked reports whether the goroutine sleeps, or looks a last time whether it must.
// Called from any goroutine.
func (s *Sleeper) IsParked() bool { return s.Parked.Load() }

// WakeUp wakes the sleeper. Called from any goroutine.
func (s *Sleeper) WakeUp() {
	if s.Parked.Load() {
		select {
		case s.C <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// maxIdleWorkers bounds the goroutines that are kept for later calls: about 4 MB of
// stacks.
const maxIdleWorkers = 1024

// Workers do jobs that may block, each on a goroutine of its own, and use the goroutines
// again.
//
// No job waits for another to return: while jobs are due, a worker is on its way to them.
// One at a time, though: the worker that takes a job and leaves others behind sends the
// next worker. So when jobs are short, workers that come free take most of them without a
// switch, and few are woken in vain; when jobs sleep or wait, all are running some
// microseconds later. Jobs that keep the processors busy have others wait for those: a
// call looks whether its element has ended before it begins.
//
// A job is due at once, or, if it was only offered, with the next send: until then
// workers that come free may take it.
type Workers[IN, OUT any] struct {
	call Blocking[IN, OUT]

	mu     sync.Mutex
	cond   *sync.Cond               // wakes idle workers to come, or to end
	jobs   fifo.Queue[Job[IN, OUT]] // guarded by mu
	idle   int                      // guarded by mu: workers that wait and were not woken
	due    int                      // guarded by mu: how many jobs are, the oldest ones
	coming bool                     // guarded by mu: a worker is on its way, new or woken
	end    bool                     // guarded by mu: idle workers shall end
}

// Job is what a worker does, which may end its goroutine: Task or, if that is nil, the
// call of Attempt, which the loop has started and which has its permit.
type Job[IN, OUT any] struct {
	Task    func()
	Attempt *Attempt[OUT]
	In      IN
}

// Blocking makes a call and completes result with what it returns. late, if not nil, is
// why the call must not be made any more.
type Blocking[IN, OUT any] func(ctx context.Context, in IN, result Future[OUT], late error)

// NewWorkers returns workers that make attempts by call.
func NewWorkers[IN, OUT any](call Blocking[IN, OUT]) *Workers[IN, OUT] {
	w := &Workers[IN, OUT]{call: call}
	w.cond = sync.NewCond(&w.mu)
	return w
}

// Run has a job done and returns at once.
func (w *Workers[IN, OUT]) Run(job Job[IN, OUT]) {
	w.Offer(job)
	w.Send()
}

// Offer has jobs done by workers that come free; the caller calls Send later.
func (w *Workers[IN, OUT]) Offer(jobs ...Job[IN, OUT]) {
	w.mu.Lock()
	for _, j := range jobs {
		w.jobs.Push(j)
	}
	w.mu.Unlock()
}

// Send makes all jobs due.
func (w *Workers[IN, OUT]) Send() {
	w.mu.Lock()
	w.due = w.jobs.Len()
	w.sendNext()
	w.mu.Unlock()
}

// sendNext sends a worker on its way, unless one is. Called with mu held.
func (w *Workers[IN, OUT]) sendNext() {
	if w.coming || w.due == 0 {
		return
	}
	w.coming = true
	if w.idle > 0 {
		w.idle--
		w.cond.Signal()
	} else {
		go w.work()
	}
}

// Stop ends the workers, each when it is idle.
func (w *Workers[IN, OUT]) Stop() {
	w.mu.Lock()
	w.end, w.idle = true, 0
	w.mu.Unlock()
	w.cond.Broadcast()
}

// work is a worker. It ends when there is too little to do, after Stop, or with its job's
// goroutine.
func (w *Workers[IN, OUT]) work() {
	for came := true; ; came = false { // came: it is the worker that was on its way
		w.mu.Lock()
		if came {
			w.coming = false
		}
		for w.jobs.Len() == 0 {
			if w.end || w.idle >= maxIdleWorkers {
				w.mu.Unlock()
				return
			}
			w.idle++
			w.cond.Wait()
			w.coming = false
		}
		j := w.jobs.Pop()
		w.due = max(0, w.due-1)
		w.sendNext()
		w.mu.Unlock()
		switch {
		case j.Task != nil:
			j.Task()
		case j.Attempt.Late() != nil: // the element ends without it (law A5): by its deadline, or with its operator
			j.Attempt.Returned()
		default:
			w.call(j.Attempt, j.In, j.Attempt, nil)
		}
	}
}
