package asyncop

import (
	"sync"

	"github.com/weirflow/weir/internal/fifo"
)

// maxIdleWorkers bounds the goroutines that are kept for later calls: about 4 MB of stacks.
const maxIdleWorkers = 1024

// workers runs blocking calls, each on a goroutine of its own, and reuses the goroutines.
//
// A job never waits for another: it is queued only when an idle worker has been told to take it. A worker that comes
// free earlier may take it instead, which spares a switch; the one that was told then finds nothing and stays idle.
type workers struct {
	release func() // called after each job that has a permit

	mu   sync.Mutex
	cond *sync.Cond      // tells idle workers of jobs and of the end
	jobs fifo.Queue[job] // guarded by mu; never more than the workers told to come
	idle int             // guarded by mu: waiting and not told to come
	end  bool            // guarded by mu: idle workers shall end
}

type job struct {
	task   func()
	permit bool
}

func newWorkers(release func()) *workers {
	w := &workers{release: release}
	w.cond = sync.NewCond(&w.mu)
	return w
}

// run runs j on an idle worker or a new one, and returns at once.
func (w *workers) run(j job) {
	w.mu.Lock()
	if w.idle == 0 || w.end {
		w.mu.Unlock()
		go w.work(j)
		return
	}
	w.idle--
	w.jobs.Push(j)
	w.mu.Unlock()
	w.cond.Signal()
}

// stop ends the workers, each when it is idle.
func (w *workers) stop() {
	w.mu.Lock()
	w.end = true
	w.mu.Unlock()
	w.cond.Broadcast()
}

// work is a worker. It ends when there is too little to do, after stop, or by runtime.Goexit in a task.
func (w *workers) work(j job) {
	for ok := true; ok; j, ok = w.next() {
		w.do(j)
	}
}

func (w *workers) do(j job) {
	if j.permit {
		defer w.release() // even if the task ends its goroutine
	}
	j.task()
}

// next waits for a job; ok is false if the worker shall end.
func (w *workers) next() (j job, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := false
	for w.jobs.Len() == 0 {
		if w.end || !told && w.idle >= maxIdleWorkers {
			return job{}, false
		}
		w.idle++
		w.cond.Wait()
		told = true
	}
	return w.jobs.Pop(), true
}
