package drive

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/core"
)

// witness is a timer beside the loop while that is busy. How late it fires distinguishes a call that blocks the loop from a
// machine that does not let the process run. What it cannot know: whether the loop alone was kept waiting for a processor.
//
// It rings every witnessPeriod while the loop does not park, and once after that. An operator that is idle has none.
type witness struct {
	clock  clock.Clock
	now    func() time.Duration
	asleep func() bool // the loop is parked, or the body of a loop over the results runs

	armed atomic.Bool
	lost  atomic.Int64 // the sum of how late it was, in nanoseconds
	rings atomic.Int64

	mu    sync.Mutex
	timer *clock.Timer  // guarded by mu
	due   time.Duration // guarded by mu; meaningful while armed
	ended bool          // guarded by mu
}

const witnessPeriod = core.SlowCallLimit / 2

// watch sees to it that the witness is there. Called by the loop when it has something to do.
func (w *witness) watch() {
	if w != nil && !w.armed.Load() {
		w.arm()
	}
}

func (w *witness) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.armed.Store(true)
	w.due = w.now() + witnessPeriod
	if w.timer == nil {
		w.timer = w.clock.AfterFunc(witnessPeriod, w.ring)
	} else {
		w.timer.Reset(witnessPeriod)
	}
}

func (w *witness) ring() {
	w.rings.Add(1)
	w.mu.Lock()
	w.lost.Add(int64(max(0, w.now()-w.due)))
	w.armed.Store(false)
	w.mu.Unlock()
	if !w.asleep() {
		w.arm()
	}
}

// lostTime is stalled for the beginning of a call, at the cost of a load.
func (w *witness) lostTime() *atomic.Int64 {
	if w == nil {
		return new(atomic.Int64)
	}
	return &w.lost
}

// rung returns how often it has rung; nil if there is no witness.
func (w *witness) rung() *atomic.Int64 {
	if w == nil {
		return nil
	}
	return &w.rings
}

// stalled returns for how long the process has not run, as far as the witness knows: only differences mean something.
func (w *witness) stalled(now time.Duration) time.Duration {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := time.Duration(w.lost.Load())
	if w.armed.Load() {
		lost += max(0, now-w.due)
	}
	return lost
}

func (w *witness) stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.armed.Store(false)
	if w.timer != nil {
		w.timer.Stop()
	}
}
