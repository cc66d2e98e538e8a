package call

import (
	"context"
	"sync"

	"github.com/weirflow/weir/internal/fifo"
)

// maxIdleWorkers bounds the goroutines that are kept for later calls: about 4 MB of stacks.
const maxIdleWorkers = 1024

// Workers do jobs that may block, each on a goroutine of its own, and use the goroutines again.
//
// No job waits for another to return: while jobs are due, a worker is on its way to them. One at a time, though: the worker
// that takes a job and leaves others behind sends the next worker. So when jobs are short, workers that come free take most of
// them without a switch, and few are woken in vain; when jobs sleep or wait, all are running some microseconds later. Jobs that
// keep the processors busy have others wait for those: a call looks whether its element has ended before it begins.
//
// A job is due at once, or, if it was only offered, with the next send: until then workers that come free may take it.
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

// Job is what a worker does, which may end its goroutine: Task or, if that is nil, the call of Attempt, which the loop has started and
// which has its permit.
type Job[IN, OUT any] struct {
	Task    func()
	Attempt *Attempt[OUT]
	In      IN
}

// Blocking makes a call and completes result with what it returns. late, if not nil, is why the call must not be made any more.
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

// work is a worker. It ends when there is too little to do, after Stop, or with its job's goroutine.
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
			w.call(j.Attempt, j.In, (*Returning[OUT])(j.Attempt), nil)
		}
	}
}
