package core

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
)

// house is a backend of tests: it has permits, and lets calls start in intervals.
type house struct {
	mu       sync.Mutex
	limit    int
	used     int
	interval time.Duration
	next     time.Time
}

func newHouse(limit int) *house { return &house{limit: limit} }

// Take takes a permit for an operator that is not there.
func (h *house) Take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.limit {
		return false
	}
	h.used++
	return true
}

// Release gives one back.
func (h *house) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used--
}

func (h *house) Used() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

// door is the place of a rig.
type door struct{ *house }

func (d door) wait(now time.Time) time.Duration {
	if d.used >= d.limit {
		return gate.Never
	}
	return max(0, d.next.Sub(now))
}

func (d door) Start(now time.Time, _ *gate.Attempt) gate.Answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if wait := d.wait(now); wait > 0 {
		return gate.Answer{Wait: wait}
	}
	d.used++
	d.next = now.Add(d.interval)
	return gate.Answer{}
}

func (d door) Wait(now time.Time, _ int) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wait(now)
}

func (d door) Release(gate.Stamp)                                { d.house.Release() }
func (door) Join(*gate.Attempt)                                  {}
func (door) Heard(time.Time, *gate.Outcome) bool                 { return false }
func (door) MayRetry(time.Time) bool                             { return true }
func (door) Settle(time.Time, bool)                              {}
func (door) Leave()                                              {}
func (door) Closed(time.Time, *gate.Late) (error, time.Duration) { return nil, 0 }

// ear is a place that writes down when it hears.
type ear struct {
	door
	heard []time.Time
}

func (e *ear) Heard(now time.Time, _ *gate.Outcome) bool {
	e.heard = append(e.heard, now)
	return false
}

// A backend hears of a call that has blocked the loop at the end of the call.
func TestBackendHearsAtTheEndOfACall(t *testing.T) {
	for name, outcome := range map[string]func(a *call.Attempt[string]){
		"result": func(a *call.Attempt[string]) { a.Complete("done") },
		"error":  func(a *call.Attempt[string]) { a.CompleteExceptionally(errBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			e := &ear{door: door{newHouse(9)}}
			r := newRig(t, nil, func(c *setup) { c.Host.Place = e })
			var ended []time.Time
			r.answer = func(_ string, a *call.Attempt[string]) error {
				r.clock.at = r.clock.at.Add(time.Second)
				ended = append(ended, r.clock.at)
				outcome(a)
				return nil
			}
			r.Turn()
			r.feed("a b c")
			r.idle()
			require.Len(t, ended, 3)
			require.Equal(t, ended, e.heard)
			r.end()
		})
	}
}

// share makes the calls of the rig need a permit of h.
func (r *rig) share(h *house) {
	r.Host.Place = door{h}
	r.build(r.setup)
}

// sleep lets the driver sleep if the core says so, and reports it.
func (r *rig) sleep() bool {
	r.Host.Parked.Store(true)
	if r.Next() <= r.Timers.Now() {
		r.Host.Parked.Store(false)
		return false
	}
	return true
}
