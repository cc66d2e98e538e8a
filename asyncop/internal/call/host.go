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

// Host is the shared state of an operator's tokens.
type Host struct {
	// Written once before the start, then read-only.
	User      context.Context         //nolint:containedctx // the user's context
	Life      context.Context         //nolint:containedctx // the operator's, derived from User
	Cancel    context.CancelCauseFunc // ends Life
	Values    context.Context         //nolint:containedctx // User without its end
	RealTime  bool                    // the clock is the real one
	Clock     Clock
	Run       func(task func()) // runs task on a worker
	Backend   gate.Backend      // or nil
	Seat      gate.Seat         // asks for permits; nil without a backend
	Lease     gate.Leased       // Seat, if its permits depend on a lease, or nil
	OuterCall Reporter          // or nil

	_ [64]byte // separates the read-only fields from fields that are often written

	// For any goroutine.
	Sleeper   // wakes the loop
	_         [64]byte
	Mail      Mailbox      // to the loop
	Suspended atomic.Bool  // elements are in the final checkpoint: calls and tasks do not start
	Tasks     atomic.Int64 // running functions on workers that are not calls; they may outlive their elements
	late      atomic.Int64 // late completions
	freed     atomic.Int64 // freed permits of the operator that the loop has not taken yet
	outliving outliving
}

// ErrNil replaces a nil error of CompleteExceptionally.
var ErrNil = errors.New("asyncop: CompleteExceptionally was called with a nil error")

// Panicked returns an error for the result of recover; nil means runtime.Goexit.
func Panicked(recovered any) error { return guard.Recovered("asyncop", recovered) }

// OffLoop runs user code on another goroutine, and waits. The code may block briefly. If
// it calls runtime.Goexit, the loop does not end: that becomes an error, like a panic
// (law A6).
func OffLoop(f func() error) error { return guard.Call(f, Panicked) }

// Clock is an operator's clock. Instants are durations since its start.
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

// beginCall waits until a call with the permit of a stamp may be made (law B5), and
// returns the function that ends the call. If ctx ends earlier, it returns its error, and
// the call must not be made.
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

// DoneAsking notifies the backend that no attempt starts in this step.
func (h *Host) DoneAsking() {
	if h.Seat != nil {
		h.Seat.DoneAsking(h.Clock.Time(h.Clock.Now()), false)
	}
}

// Cancelled reports whether the operator must end now. It checks User, too: Life ends a
// little after User, and upstream may have noticed the end of User before.
func (h *Host) Cancelled() bool { return h.Life.Err() != nil || h.User.Err() != nil }

// Late returns the number of late completions.
func (h *Host) Late() int64 { return h.late.Load() }

// Freed returns how many freed permits the loop has not taken.
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

// Ref refers to the element that waits for a letter. Generations do not repeat, so an old
// Ref finds no slot (law A2). The zero Ref refers to no element.
type Ref struct {
	Index      uint32
	Stamp      gate.Stamp // of the call at the backend; not part of the reference, but here it needs no space
	Generation uint64
}

// Letter is an entry of the mailbox. It is embedded, so posting does not allocate.
type Letter struct {
	Next *Letter // in the mailbox, or in the result of Take; nil once the letter is read

	Ref Ref // of the waiting element; written before the start
}

// Mailbox is a lock-free stack of letters, which the loop takes as a whole. Posting costs
// one compare-and-swap. A channel would cost more, and block when full.
type Mailbox struct {
	head atomic.Pointer[Letter] // newest first, or closed; any goroutine posts, the loop takes
}

// closed is the head of a closed mailbox.
var closed Letter

// Post puts letters into the mailbox and wakes the loop, which takes them together. They
// are chained from newest to oldest, and must not be in the mailbox already.
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

// Take returns all letters, chained by Next, oldest first.
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

// Close drops all present and later letters, so that a kept operator does not keep them.
// Take must not follow.
func (m *Mailbox) Close() { m.head.Store(&closed) }

// Empty reports whether the mailbox is empty.
func (m *Mailbox) Empty() bool { return m.head.Load() == nil }

// Sleeper lets a goroutine sleep until there is work. Others wake it only if it sleeps or
// is about to.
type Sleeper struct {
	Parked atomic.Bool   // the goroutine sleeps, or checks a last time
	C      chan struct{} // buffer of one: one wake-up is enough
}

// NewSleeper returns a Sleeper.
func NewSleeper() Sleeper { return Sleeper{C: make(chan struct{}, 1)} }

// Sleep waits to be woken, unless isIdle returns false. A wake-up while isIdle runs is
// not lost. Sleep may also return without a wake-up.
func (s *Sleeper) Sleep(isIdle func() bool) {
	s.Parked.Store(true)
	if isIdle() {
		<-s.C
	}
	s.Parked.Store(false)
}

// IsParked returns Parked.
func (s *Sleeper) IsParked() bool { return s.Parked.Load() }

// WakeUp wakes the sleeper, from any goroutine.
func (s *Sleeper) WakeUp() {
	if s.Parked.Load() {
		select {
		case s.C <- struct{}{}:
		default: // a wake-up is pending
		}
	}
}

// maxIdleWorkers bounds the idle goroutines: about 4 MB of stacks.
const maxIdleWorkers = 1024

// Workers run jobs that may block, each on its own goroutine. Goroutines are reused.
//
// A job does not wait for another one to return: while jobs are due, one worker is on its
// way. A worker that takes a job and leaves others sends the next worker. For example,
// three jobs are due. The first worker takes a job and sends a second worker. If the
// first job is short, the first worker takes the next job as well. If it is long, the
// second worker does, and sends a third one.
//
// So most short jobs need no switch of goroutines, and jobs that sleep or wait all run
// after some microseconds. Busy jobs delay others, so a worker checks before each call
// whether the element has ended.
//
// Run makes a job due at once. An offered job is due after the next Send, but a worker
// that becomes free may take it earlier.
type Workers[IN, OUT any] struct {
	call Blocking[IN, OUT]

	mu     sync.Mutex
	cond   *sync.Cond               // wakes idle workers, for a job or to end
	jobs   fifo.Queue[Job[IN, OUT]] // guarded by mu
	idle   int                      // guarded by mu: waiting and not woken
	due    int                      // guarded by mu: number of jobs that are due, which are the oldest
	coming bool                     // guarded by mu: a worker is on its way
	ending bool                     // guarded by mu: idle workers end
}

// Job is Task or, if Task is nil, the call of Attempt, which has its permit. It may end
// the worker's goroutine.
type Job[IN, OUT any] struct {
	Task    func()
	Attempt *Attempt[OUT]
	In      IN
}

// Blocking makes a call, and completes result. late is why it must not make the call, or
// nil.
type Blocking[IN, OUT any] func(ctx context.Context, in IN, result Future[OUT], late error)

// NewWorkers returns workers for call.
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

// sendNext sends a worker to due jobs, unless one is on its way. mu is held.
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
	w.ending, w.idle = true, 0
	w.mu.Unlock()
	w.cond.Broadcast()
}

// work is the goroutine of a worker. It ends after Stop, if enough workers are idle, or
// when a job ends it.
func (w *Workers[IN, OUT]) work() {
	w.mu.Lock()
	w.coming = false // this worker has arrived
	for {
		job, ok := w.takeJob()
		w.mu.Unlock()
		if !ok {
			return
		}
		w.do(job)
		w.mu.Lock()
	}
}

// takeJob waits for a job, and sends the next worker for the jobs behind it. ok is false
// if this worker must end. mu is held, except during the wait.
func (w *Workers[IN, OUT]) takeJob() (job Job[IN, OUT], ok bool) {
	for w.jobs.Len() == 0 {
		if w.ending || w.idle >= maxIdleWorkers {
			return job, false
		}
		w.idle++
		w.cond.Wait()
		w.coming = false // this worker has arrived
	}
	job = w.jobs.Pop()
	w.due = max(0, w.due-1)
	w.sendNext()
	return job, true
}

func (w *Workers[IN, OUT]) do(j Job[IN, OUT]) {
	switch {
	case j.Task != nil:
		j.Task()
	case j.Attempt.Host.Lease != nil:
		w.callLeased(j)
	case j.Attempt.Late() != nil: // the element has ended or must end (law A5)
		j.Attempt.Returned()
	default:
		w.call(j.Attempt, j.In, j.Attempt, nil)
	}
}

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
