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

// Host has the state that the tokens of an operator share.
type Host struct {
	// Written once before the start, then read-only.
	User     context.Context         //nolint:containedctx // the user's context
	Life     context.Context         //nolint:containedctx // the operator's, derived from User
	Cancel   context.CancelCauseFunc // ends Life
	Values   context.Context         //nolint:containedctx // User without its end
	RealTime bool                    // the clock is the real one
	Clock    Clock
	Run      func(task func()) // runs task on a worker
	Backend  gate.Backend      // the called backend, or nil
	Seat     gate.Seat         // asks the backend for permits; nil without a backend
	Lease    gate.Leased       // Seat, if its permits depend on a lease, or nil
	Around   Reporter          // reports to the call that the operator runs inside of, or nil

	_ [64]byte // separates fields that other goroutines read from fields that the loop writes

	// Used by any goroutine.
	Sleeper   // for the loop
	_         [64]byte
	Mail      Mailbox      // to the loop
	Suspended atomic.Bool  // the final checkpoint has the elements in flight: calls and tasks no longer start
	Tasks     atomic.Int64 // functions on workers that are not calls, and may outlive their elements
	late      atomic.Int64
	freed     atomic.Int64
	outliving outliving
}

// ErrNil replaces a nil error passed to CompleteExceptionally.
var ErrNil = errors.New("asyncop: CompleteExceptionally was called with a nil error")

// Panicked returns an error for the result of recover; nil means runtime.Goexit.
func Panicked(recovered any) error { return guard.Recovered("asyncop", recovered) }

// OffLoop runs user code, which may block briefly, on another goroutine, and waits for
// it. So runtime.Goexit does not end the goroutine of the loop: it becomes an error, as a
// panic does (law A6).
func OffLoop(f func() error) error { return guard.Call(f, Panicked) }

// Clock reads an operator's clock. Instants are durations since its start.
type Clock interface {
	Now() time.Duration
	Time(at time.Duration) time.Time
}

// FreeBackendPermit frees the backend's permit of a call that has ended.
func (h *Host) FreeBackendPermit(stamp gate.Stamp) {
	if h.Seat != nil {
		h.Seat.Release(stamp)
	}
}

// beginCall waits until a call with the permit of a stamp may be made (law B5). It
// returns the function that ends the call. If the context of the call ends earlier, it
// returns the error of ctx, and the call must not be made. Every blocking call begins
// here.
func (h *Host) beginCall(ctx context.Context, stamp gate.Stamp) (end func(), err error) {
	if h.Lease == nil {
		return func() {}, nil
	}
	begun, err := h.Lease.BeginCall(ctx, stamp)
	if err != nil {
		return func() {}, err
	}
	return func() { h.Lease.EndCall(begun) }, nil
}

// DoneAsking notifies the backend that the operator starts no attempt in this step.
func (h *Host) DoneAsking() {
	if h.Seat != nil {
		h.Seat.DoneAsking(h.Clock.Time(h.Clock.Now()), false)
	}
}

// Cancelled reports whether the operator must end now, even if the loop has not noticed.
// It checks the user's context, because Life ends a little later, when upstream may have
// seen the end already.
func (h *Host) Cancelled() bool { return h.Life.Err() != nil || h.User.Err() != nil }

// Late returns the number of late completions.
func (h *Host) Late() int64 { return h.late.Load() }

// Freed returns the number of freed permits that the loop has not taken yet.
func (h *Host) Freed() int64 { return h.freed.Load() }

// TakeFreed takes the freed permits.
func (h *Host) TakeFreed() int {
	n := h.freed.Load()
	if n > 0 {
		h.freed.Add(-n)
	}
	return int(n)
}

// ---- The mailbox

// Ref refers to the element that waits for a letter, by the index and the generation of
// its slot. Generations do not repeat, so an old reference finds no slot (law A2). The
// zero Ref refers to no element.
type Ref struct {
	Index      uint32
	Stamp      gate.Stamp // of the call at the backend; here it fills a gap, and finds no slot
	Generation uint64
}

// Letter is an entry of the mailbox. It is embedded in the posted value, so posting does
// not allocate.
type Letter struct {
	Next *Letter // in the mailbox, or in the result of Take; set to nil when the letter is read

	Ref Ref // of the waiting element: written before the start, then read-only
}

// Mailbox is a lock-free stack of letters, which the loop takes as a whole. Posting costs
// one compare-and-swap and does not allocate. A channel would cost more, and would block
// when it is full.
type Mailbox struct {
	head atomic.Pointer[Letter] // newest first, or closed; any goroutine posts, the loop takes
}

// closed is the head of a mailbox whose loop has ended.
var closed Letter

// Post puts letters into the mailbox and wakes the loop. They are chained from the newest
// to the oldest, and must not be in the mailbox already. The loop takes them together.
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

// Take empties the mailbox. It returns the letters, chained by Next, oldest first.
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

// Close drops all present and later letters, so that an operator that is kept does not
// keep them. Take is not called afterwards.
func (m *Mailbox) Close() { m.head.Store(&closed) }

// Empty reports whether the mailbox is empty.
func (m *Mailbox) Empty() bool { return m.head.Load() == nil }

// Sleeper lets a goroutine sleep until there is work. Other goroutines wake it only if it
// sleeps or is about to.
type Sleeper struct {
	Parked atomic.Bool   // the goroutine sleeps, or checks a last time
	C      chan struct{} // buffer of one: one wake-up is enough
}

// NewSleeper returns a Sleeper.
func NewSleeper() Sleeper { return Sleeper{C: make(chan struct{}, 1)} }

// Sleep waits to be woken, unless idle returns false. A wake-up that comes while idle
// runs is not lost. Sleep may also return without a wake-up.
func (s *Sleeper) Sleep(idle func() bool) {
	s.Parked.Store(true)
	if idle() {
		<-s.C
	}
	s.Parked.Store(false)
}

// IsParked returns Parked. Any goroutine may call it.
func (s *Sleeper) IsParked() bool { return s.Parked.Load() }

// WakeUp wakes the sleeper. Any goroutine may call it.
func (s *Sleeper) WakeUp() {
	if s.Parked.Load() {
		select {
		case s.C <- struct{}{}:
		default: // a wake-up is pending
		}
	}
}

// maxIdleWorkers bounds the kept goroutines: about 4 MB of stacks.
const maxIdleWorkers = 1024

// Workers run jobs that may block, each on a goroutine of its own. Goroutines are reused.
//
// No job waits for another job to return: while jobs are due, one worker is on its way to
// them, and only one. A worker that takes a job and leaves others behind sends the next
// worker. Thus workers that become free take most short jobs without a switch, and if
// jobs sleep or wait, all of them are running some microseconds later. Jobs that keep the
// processors busy delay others, so a worker checks before each call whether the element
// has ended.
//
// Run makes a job due at once. An offered job is due after the next Send, but a free
// worker may take it earlier.
type Workers[IN, OUT any] struct {
	call Blocking[IN, OUT]

	mu     sync.Mutex
	cond   *sync.Cond               // wakes idle workers, for a job or to end
	jobs   fifo.Queue[Job[IN, OUT]] // guarded by mu
	idle   int                      // guarded by mu: waiting workers that were not woken
	due    int                      // guarded by mu: number of due jobs, the oldest ones
	coming bool                     // guarded by mu: a worker is on its way, new or woken
	end    bool                     // guarded by mu: idle workers must end
}

// Job is Task or, if Task is nil, the call of Attempt, which the loop has started and
// which has its permit. It may end the goroutine of the worker.
type Job[IN, OUT any] struct {
	Task    func()
	Attempt *Attempt[OUT]
	In      IN
}

// Blocking makes a call, and completes result with its results. late is the reason why it
// must not make the call, or nil.
type Blocking[IN, OUT any] func(ctx context.Context, in IN, result Future[OUT], late error)

// NewWorkers returns workers that make calls by call.
func NewWorkers[IN, OUT any](call Blocking[IN, OUT]) *Workers[IN, OUT] {
	w := &Workers[IN, OUT]{call: call}
	w.cond = sync.NewCond(&w.mu)
	return w
}

// Run gives a job to a worker without waiting.
func (w *Workers[IN, OUT]) Run(job Job[IN, OUT]) {
	w.Offer(job)
	w.Send()
}

// Offer offers jobs to workers that become free. The caller calls Send later.
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

// sendNext sends a worker to the due jobs, unless one is on its way. mu is held.
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

// Stop ends the workers when they are idle.
func (w *Workers[IN, OUT]) Stop() {
	w.mu.Lock()
	w.end, w.idle = true, 0
	w.mu.Unlock()
	w.cond.Broadcast()
}

// work is the goroutine of a worker. It ends after Stop, if enough workers are idle, or
// if a job ends it.
func (w *Workers[IN, OUT]) work() {
	for came := true; ; came = false { // came: it was on its way
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
		case j.Attempt.Host.Lease != nil:
			w.callLeased(j)
		case j.Attempt.Late() != nil: // the element ends by its deadline, or with its operator (law A5)
			j.Attempt.Returned()
		default:
			w.call(j.Attempt, j.In, j.Attempt, nil)
		}
	}
}

// callLeased makes the call of a job whose permit depends on a lease.
func (w *Workers[IN, OUT]) callLeased(j Job[IN, OUT]) {
	a := j.Attempt
	end, err := a.Host.beginCall(a, a.Ref.Stamp)
	defer end()
	if err != nil || a.Late() != nil {
		a.Returned()
		return
	}
	w.call(a, j.In, a, nil)
}
