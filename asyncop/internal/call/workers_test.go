package call

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// jobRunner has workers in a bubble. After settle, every goroutine has gone as far as it
// can.
type jobRunner struct {
	*Workers[int, int]
	released atomic.Int64
	started  atomic.Int64
}

func newJobRunner() *jobRunner {
	r := &jobRunner{}
	r.Workers = NewWorkers[int, int](nil)
	return r
}

// withPermit returns a job that returns a permit.
func (r *jobRunner) withPermit(task func()) Job[int, int] {
	return Job[int, int]{Task: func() {
		defer r.released.Add(1)
		task()
	}}
}

// start runs a job and returns the function that ends it.
func (r *jobRunner) start(permit bool) (end func()) {
	gate := make(chan struct{})
	task := func() {
		r.started.Add(1)
		<-gate
	}
	if permit {
		r.Run(r.withPermit(task))
	} else {
		r.Run(Job[int, int]{Task: task})
	}
	return func() { close(gate) }
}

func (r *jobRunner) idleWorkers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle
}

// goroutineID names the calling goroutine.
func goroutineID() string {
	buf := make([]byte, 64)
	id, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), " [")
	return id
}

var bubbleOf = regexp.MustCompile(`(?m)^goroutine .*(synctest bubble \d+)`)

// bubbleGoroutines counts the goroutines of the caller's bubble. Goroutines of earlier
// tests may still be ending.
func bubbleGoroutines() int {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	all := bubbleOf.FindAllSubmatch(buf, -1)
	return len(slices.DeleteFunc(all, func(m [][]byte) bool { return !bytes.Equal(m[1], all[0][1]) })) // the first is the caller
}

func TestWorkersAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		ids := map[string]bool{}
		for range 100 {
			r.Run(Job[int, int]{Task: func() { ids[goroutineID()] = true }})
			synctest.Wait()
		}
		assert.Len(t, ids, 1)
		assert.Equal(t, 1, r.idleWorkers())
	})
}

func TestWorkersRunOneJobEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		for range 2 { // the second time with workers of the first
			before := bubbleGoroutines() - r.idleWorkers()
			var ends []func()
			for range 50 {
				ends = append(ends, r.start(false))
			}
			synctest.Wait()
			assert.Equal(t, before+50, bubbleGoroutines())
			for _, end := range ends {
				end()
			}
			synctest.Wait()
			assert.Equal(t, 50, r.idleWorkers())
		}
		assert.EqualValues(t, 100, r.started.Load())
		assert.Zero(t, r.released.Load(), "no job had a permit")
	})
}

// A job never waits for an earlier job, whichever jobs have started and ended: here at
// random.
func TestWorkersNeverLetAJobWait(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			r := newJobRunner()
			var ends []func()
			submitted, permits, ended := 0, 0, 0
			for range 60 {
				for range random.IntN(4) { // concurrently, while workers are still on their way to a job or to being idle
					if len(ends) > 0 && random.IntN(2) == 0 {
						i := random.IntN(len(ends))
						ends[i]()
						ends = append(ends[:i], ends[i+1:]...)
						ended++
					} else {
						permit := random.IntN(2) == 0
						if permit {
							permits++
						}
						ends = append(ends, r.start(permit))
						submitted++
					}
				}
				if random.IntN(2) == 0 {
					synctest.Wait()
					assert.EqualValues(t, submitted, r.started.Load(), "every job runs")
				}
				if random.IntN(60) == 0 {
					r.Stop()
				}
			}
			for _, end := range ends {
				end()
			}
			synctest.Wait()
			assert.EqualValues(t, submitted, r.started.Load())
			assert.EqualValues(t, permits, r.released.Load(), "each permit is given back once")
			r.Stop()
		})
	}
}

// A job that finds an idle worker which is on its way to another job gets its own worker.
func TestWorkersInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		end := r.start(false)
		synctest.Wait()
		end()
		synctest.Wait()
		first, second := r.start(false), r.start(false) // one idle worker, two jobs
		synctest.Wait()
		assert.EqualValues(t, 3, r.started.Load())
		first()
		second()
	})
}

// Jobs that are only offered are taken by workers that become free. Idle workers take
// them when Send is called.
func TestWorkersOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		busy, idle := r.start(false), r.start(false)
		synctest.Wait()
		idle()
		synctest.Wait()
		gate := make(chan struct{})
		var offered []Job[int, int]
		for range 4 {
			offered = append(offered, Job[int, int]{Task: func() { r.started.Add(1); <-gate }})
		}
		r.Offer(offered...)
		synctest.Wait()
		assert.EqualValues(t, 2, r.started.Load(), "the idle one stays where it is")
		busy()
		synctest.Wait()
		assert.EqualValues(t, 3, r.started.Load(), "who comes free takes one, and sends nobody")
		assert.Equal(t, 1, r.idleWorkers())
		r.Send()
		synctest.Wait()
		assert.EqualValues(t, 6, r.started.Load())
		close(gate)
	})
}

// A job that is due takes no worker from a job that is only offered: Send starts workers
// for earlier offers too, but not for later ones.
func TestWorkersSentForWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		gate := make(chan struct{})
		wait := Job[int, int]{Task: func() { r.started.Add(1); <-gate }}
		r.Offer(wait)
		r.Run(wait)
		r.Offer(wait)
		synctest.Wait()
		assert.EqualValues(t, 2, r.started.Load())
		r.Send()
		synctest.Wait()
		assert.EqualValues(t, 3, r.started.Load())
		r.Send() // has no effect
		close(gate)
		synctest.Wait()
		assert.Equal(t, 3, r.idleWorkers())
	})
}

// Law A6: a task that ends its goroutine has no other effect.
func TestWorkersSurviveGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		for range 10 {
			r.Run(r.withPermit(runtime.Goexit))
			synctest.Wait()
		}
		assert.EqualValues(t, 10, r.released.Load())
		assert.Zero(t, r.idleWorkers())

		end := r.start(true)
		synctest.Wait()
		assert.EqualValues(t, 1, r.started.Load())
		end()
		synctest.Wait()
		assert.EqualValues(t, 11, r.released.Load())
		assert.Equal(t, 1, r.idleWorkers())
	})
}

func TestWorkersKeepABoundedNumberIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		defer r.Stop()
		before := bubbleGoroutines()
		var ends []func()
		for range maxIdleWorkers + 100 {
			ends = append(ends, r.start(false))
		}
		synctest.Wait()
		assert.EqualValues(t, maxIdleWorkers+100, r.started.Load())
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		assert.Equal(t, maxIdleWorkers, r.idleWorkers())
		assert.Equal(t, before+maxIdleWorkers, bubbleGoroutines())
	})
}

func TestWorkersEndAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newJobRunner()
		before := bubbleGoroutines()
		ends := []func(){r.start(true), r.start(true)}
		synctest.Wait()
		ends[0]()
		synctest.Wait() // one idle, one busy
		ends = append(ends, r.start(true))
		r.Stop() // one on its way, one busy
		ends = append(ends, r.start(true))
		synctest.Wait()
		assert.EqualValues(t, 4, r.started.Load(), "stop takes no job back")
		for _, end := range ends[1:] {
			end()
		}
		synctest.Wait()
		assert.EqualValues(t, 4, r.released.Load())
		assert.Equal(t, before, bubbleGoroutines())
	})
}

// In real time, with many goroutines that submit jobs: each job runs once.
func TestWorkersUnderContention(t *testing.T) {
	r := newJobRunner()
	defer r.Stop()
	var done, callers sync.WaitGroup
	var ran atomic.Int64
	for range 8 {
		callers.Go(func() {
			for range 2000 {
				done.Add(1)
				r.Run(r.withPermit(func() {
					ran.Add(1)
					done.Done()
				}))
			}
		})
	}
	callers.Wait()
	done.Wait()
	assert.EqualValues(t, 16000, ran.Load())
}
