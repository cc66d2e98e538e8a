package core

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// house is a test backend with permits and a minimum interval between starts.
type house struct {
	mu       sync.Mutex
	limit    int
	used     int
	interval time.Duration
	next     time.Time
}

func newHouse(limit int) *house { return &house{limit: limit} }

// Take takes a permit for another operator.
func (h *house) Take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.limit {
		return false
	}
	h.used++
	return true
}

// Release returns a permit.
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

// door is the seat of a rig.
type door struct{ *house }

func (d door) wait(now time.Time) time.Duration {
	if d.used >= d.limit {
		return gate.Never
	}
	return max(0, d.next.Sub(now))
}

func (d door) Start(now time.Time, _ *gate.Request) gate.Answer {
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

func (d door) Release(gate.Stamp)                                    { d.house.Release() }
func (door) Join(*gate.Request)                                      {}
func (door) IsDown(time.Time, string) bool                           { return false }
func (door) IsTenantPaused(time.Time, string) bool                   { return false }
func (door) Refund(time.Time, *gate.Request)                         {}
func (door) AttemptEnded(time.Time, *gate.Evidence) gate.Effect      { return gate.Counts }
func (door) MayRetry(time.Time) bool                                 { return true }
func (door) DoneAsking(time.Time, bool)                              {}
func (door) Leave()                                                  {}
func (door) WhyWaiting(time.Time, *gate.Late) (error, time.Duration) { return nil, 0 }

// ear is a seat that records the times at which attempts end.
type ear struct {
	door
	heard []time.Time
}

func (e *ear) AttemptEnded(now time.Time, _ *gate.Evidence) gate.Effect {
	e.heard = append(e.heard, now)
	return gate.Counts
}

// A call that has blocked the loop is reported to the backend with the time of the end of
// the call.
func TestBackendHearsAtTheEndOfACall(t *testing.T) {
	for name, outcome := range map[string]func(a *call.Attempt[string]){
		"result": func(a *call.Attempt[string]) { a.Complete("done") },
		"error":  func(a *call.Attempt[string]) { a.CompleteExceptionally(errBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			e := &ear{door: door{newHouse(9)}}
			r := newRig(t, nil, func(c *setup) { c.Host.Seat = e })
			var ended []time.Time
			r.answer = func(_ string, a *call.Attempt[string]) error {
				r.clock.at = r.clock.at.Add(time.Second)
				ended = append(ended, r.clock.at)
				outcome(a)
				return nil
			}
			r.Step()
			r.feed("a b c")
			r.idle()
			require.Len(t, ended, 3)
			require.Equal(t, ended, e.heard)
			r.end()
		})
	}
}

// Law B4: an attempt is reported to the backend even if the policy panics, or ends the
// goroutine of the loop, before it has found a reason.
func TestBackend_PolicyBreaksBeforeTheReport(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			e := &ear{door: door{newHouse(9)}}
			policy := strategies.ReasonAware(predicates.ByException[string](predicates.HasException, predicates.Unknown), nil).IdempotentIf(func(in any) bool {
				if in == "b" {
					breaks()
				}
				return false
			})
			r := newRig(t, policy, func(c *setup) { c.Host.Seat = e })
			r.answer = func(_ string, a *call.Attempt[string]) error {
				a.CompleteExceptionally(errBroken)
				return nil
			}
			onGoroutine(func() { r.feed("a b") })
			require.Len(t, e.heard, 2)
			if name == "exits" {
				r.exitedBy("the retry strategy or one of its predicates")
				return
			}
			r.idle()
			r.end()
		})
	}
}

// thinking is a strategy that takes some time and allows no retry.
type thinking struct {
	strategies.AsyncRetryStrategy[string]
	think func()
}

func (s thinking) CanRetry(int) bool {
	s.think()
	return false
}

// Law A5: the time that the policy takes after the report to the backend counts for
// waiting elements.
func TestBackend_DeadlineWhileThePolicyDecides(t *testing.T) {
	var r *rig
	strategy := thinking{strategies.FixedDelay[string](1, 0).RetryIfResult(predicates.ResultPredicate[string](func([]string) bool { return true })), func() {
		r.clock.at = r.clock.at.Add(2 * time.Minute)
	}}
	r = newRig(t, strategy, func(c *setup) { c.MaxCalls, c.Host.Seat = 1, &ear{door: door{newHouse(9)}} })
	r.feed("a b")
	r.complete("a#1")
	r.idle()
	require.Equal(t, "(a#1 a#1 !b", r.took())
	r.end()
}

// scarce counts the retries that are charged to its budget.
type scarce struct {
	door
	taken int
}

func (s *scarce) MayRetry(time.Time) bool {
	s.taken++
	return true
}

// A call that has blocked the loop beyond its element's deadline does not charge a retry
// to the budget.
func TestRetryBudget_RetryThatIsTooLate(t *testing.T) {
	for took, want := range map[time.Duration]int{time.Second: 1, 2 * time.Minute: 0} {
		for name, complete := range outcomesToRetry {
			s := &scarce{door: door{newHouse(9)}}
			r := newRig(t, retryingBoth(time.Second), func(c *setup) { c.Host.Seat = s })
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

// registry is a seat that records its arguments.
type registry struct {
	door
	started, joined []bool // whether each attempt is a retry
	late            []gate.Late
}

func (p *registry) Start(now time.Time, a *gate.Request) gate.Answer {
	p.started = append(p.started, a.Retry)
	return p.door.Start(now, a)
}

func (p *registry) Join(a *gate.Request) { p.joined = append(p.joined, a.Retry) }

func (p *registry) WhyWaiting(_ time.Time, l *gate.Late) (error, time.Duration) {
	p.late = append(p.late, *l)
	return nil, 0
}

// Law B3: the backend is told for each member of a batch whether its attempt is a retry.
func TestBackend_RetriesInABatch(t *testing.T) {
	p := &registry{door: door{newHouse(9)}}
	b := withBatches(t, 3, 0, retries(1, 0), func(c *setup) { c.Host.Seat = p })
	b.broken["a#1"], b.broken["b#1"] = true, true
	b.rig.feed("a b") // a batch of two: c comes later
	b.step()
	b.formed[0]()
	b.rig.feed("c")
	b.step()
	b.step()
	require.Len(t, b.formed, 2)
	b.formed[1]()
	b.step()
	require.Equal(t, []string{"a#2", "b#2", "c#1"}, b.called)
	require.Equal(t, []bool{false, true}, p.started)
	require.Equal(t, []bool{false, true, false}, p.joined)
	b.end()
}

// Law W2: at the deadline, the backend gets the time at which the message of the element
// failed at an earlier visit.
func TestBackend_DeadlineOfAMessageThatFailedBefore(t *testing.T) {
	failed := time.Unix(500, 0)
	for name, call := range map[string]bool{"called": true, "never called": false} {
		p := &registry{door: door{newHouse(9)}}
		if !call {
			p.limit = 0
		}
		r := newRig(t, nil, func(c *setup) { c.Host.Seat = p })
		meta := message.Meta{ID: "1", Visit: 2, LastFailure: failed}
		r.Accept("a", message.New(struct{}{}, &meta, func(message.Settlement) {}))
		r.pass(time.Minute - 1)
		r.clock.at = r.clock.at.Add(1)
		r.step()
		r.SettleMessages()
		require.Len(t, p.late, 1, name)
		if call {
			require.Equal(t, failed, p.late[0].Failed, name)
			require.False(t, p.late[0].Begun.IsZero(), name)
		} else { // a message that was not called cannot have broken the service
			require.Zero(t, p.late[0].Failed, name)
		}
	}
}

// tenantSeat is a seat that refuses the calls of tenants that are down.
type tenantSeat struct {
	door
	down map[string]bool
}

func (s tenantSeat) Start(now time.Time, r *gate.Request) gate.Answer {
	if s.down[r.Tenant] {
		return gate.Answer{Wait: time.Second, OthersMayStart: true, TenantIsDown: true}
	}
	return s.door.Start(now, r)
}

func (s tenantSeat) WhyWaiting(_ time.Time, l *gate.Late) (error, time.Duration) {
	if s.down[l.Tenant] {
		return errBroken, 7 * time.Second
	}
	return nil, 0
}

// Law B2: a message whose tenant is down leaves its slot at once, without a visit unless
// it was called. An element that is not a message waits in its slot.
func TestBackend_TenantIsDown(t *testing.T) {
	seat := tenantSeat{door{newHouse(9)}, map[string]bool{"acme": true}}
	r := newRig(t, retries(3, time.Second), func(c *setup) {
		c.Host.Seat = seat
		c.Calls = &BackendCalls{HasKey: true}
	})
	settled := map[string]message.Settlement{}
	accept := func(in, key string) {
		meta := message.Meta{ID: in, Key: key}
		r.Accept(in, message.New(struct{}{}, &meta, func(v message.Settlement) { settled[in] = v }))
		r.step()
		r.SettleMessages()
	}
	accept("a", "acme")
	require.Equal(t, message.Released, settled["a"].Kind)
	require.Equal(t, 7*time.Second, settled["a"].Delay)
	require.Equal(t, "", r.took())
	accept("b", "other")
	require.Equal(t, "(b#1", r.took())

	seat.down["acme"] = false
	accept("c", "acme")
	require.Equal(t, "(c#1", r.took())
	seat.down["acme"] = true
	r.fail("c#1")
	r.step()
	require.NotContains(t, settled, "c")
	r.pass(time.Second - 1)
	r.clock.at = r.clock.at.Add(1)
	r.step()
	r.SettleMessages()
	require.Equal(t, message.HandedOver, settled["c"].Kind, "it was called")
	require.ErrorContains(t, settled["c"].Err, "timed out after 1s, early true")
	require.Equal(t, "!c", r.took())

	seat.down[""] = true
	r.feed("d")
	require.Equal(t, "", r.took())
	seat.down[""] = false
	r.pass(time.Second)
	require.Equal(t, "(d#1", r.took())
	r.complete("b#1 d#1")
	r.step()
	r.end()
}

// Law A5: an attempt does not start at its deadline, even if the cost function has taken
// the time until then.
func TestBackend_CostTakesTheTimeUpToTheDeadline(t *testing.T) {
	for took, want := range map[time.Duration]string{
		time.Minute - 1: "(a#1",
		time.Minute:     "",
		time.Minute + 1: "",
	} {
		var r *rig
		r = newRig(t, nil, func(c *setup) {
			c.Host.Seat = door{newHouse(9)}
			c.Cost = func(string) float64 { r.clock.at = r.clock.at.Add(took); return 1 }
		})
		r.feed("a")
		require.Equal(t, want, r.took(), "%v", took)
		r.pass(time.Minute)
		r.end()
	}
}

// share makes the calls of the rig need a permit of h.
func (r *rig) share(h *house) {
	r.Host.Seat = door{h}
	r.build(r.setup)
}

// sleep lets the driver sleep if the core has no work, and reports whether it sleeps.
func (r *rig) sleep() bool {
	r.Host.Parked.Store(true)
	if r.Next() <= r.Timers.Now() {
		r.Host.Parked.Store(false)
		return false
	}
	return true
}
