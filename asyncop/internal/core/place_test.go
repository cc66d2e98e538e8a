package core

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
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

// A backend hears of an outcome also if the policy breaks before it has found a reason, whatever it has heard before.
func TestBackendHearsOfWhatThePolicyBreaksOn(t *testing.T) {
	e := &ear{door: door{newHouse(9)}}
	policy := strategies.ReasonAware(predicates.ByException[string](predicates.HasException, predicates.Unknown), nil).IdempotentIf(func(in any) bool {
		if in == "b" {
			panic("idempotent?")
		}
		return false
	})
	r := newRig(t, policy, func(c *setup) { c.Host.Place = e })
	r.answer = func(_ string, a *call.Attempt[string]) error {
		a.CompleteExceptionally(errBroken)
		return nil
	}
	r.feed("a b")
	r.idle()
	require.Len(t, e.heard, 2)
	r.end()
}

// thinking is a strategy that takes its time, and allows no retry.
type thinking struct {
	strategies.AsyncRetryStrategy[string]
	think func()
}

func (s thinking) CanRetry(int) bool {
	s.think()
	return false
}

// Law A5: the time that the policy takes after a backend has heard counts for those that wait.
func TestNoStartAfterADeadlineThatCameWhileThePolicyDecided(t *testing.T) {
	var r *rig
	strategy := thinking{strategies.FixedDelay[string](1, 0).RetryIfResult(predicates.ResultPredicate[string](func([]string) bool { return true })), func() {
		r.clock.at = r.clock.at.Add(2 * time.Minute)
	}}
	r = newRig(t, strategy, func(c *setup) { c.MaxCalls, c.Host.Place = 1, &ear{door: door{newHouse(9)}} })
	r.feed("a b")
	r.complete("a#1")
	r.idle()
	require.Equal(t, "(a#1 a#1 !b", r.took())
	r.end()
}

// scarce counts the retries that are taken out of its budget.
type scarce struct {
	door
	taken int
}

func (s *scarce) MayRetry(time.Time) bool {
	s.taken++
	return true
}

// A call that has blocked the loop beyond the time of its element takes no retry out of the budget.
func TestNoBudgetForARetryThatIsTooLate(t *testing.T) {
	for took, want := range map[time.Duration]int{time.Second: 1, 2 * time.Minute: 0} {
		for name, complete := range outcomesToRetry {
			s := &scarce{door: door{newHouse(9)}}
			r := newRig(t, retryingBoth(time.Second), func(c *setup) { c.Host.Place = s })
			r.answer = func(_ string, a *call.Attempt[string]) error {
				r.clock.at = r.clock.at.Add(took)
				complete(a)
				return nil
			}
			r.feed("a")
			require.Equal(t, want, s.taken, "a call of %v with %s", took, name)
			r.answer = nil
			r.pass(5 * time.Minute)
			r.end()
		}
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
