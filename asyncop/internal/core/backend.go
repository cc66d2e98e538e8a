package core

import (
	"fmt"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
)

// BackendCalls configures the calls of a backend.
type BackendCalls struct {
	HasCost   bool    // User.CostOf returns the cost of an attempt; otherwise it is 1
	HasTenant bool    // User.TenantOf returns its tenant
	HasKey    bool    // the key of a message is its tenant
	Budget    float64 // calls stop when atBackend.spent reaches it; 0 means no limit
}

// maxForgiven bounds the attempts of an element that do not count because of an outage.
const maxForgiven = 3

// atBackend admits attempts, through the operator's seat at the backend.
type atBackend[IN, OUT any] struct {
	BackendCalls

	core            *Machine[IN, OUT]
	seat            gate.Seat
	request         gate.Request  // reused
	evidence        gate.Evidence // reused
	requests        perSlot[requestState]
	lastBatch       *gate.Call // of the batch that was started last
	wasRefused      bool       // a call was refused in this step
	spent           float64    // settled cost of all calls, including earlier runs; reported by the call, or else estimated
	refusedByBudget bool       // a call was refused because the budget is spent
}

// requestState is the state of an element at the backend.
type requestState struct {
	outages   int // attempts that met an outage
	throttled int // attempts that the service answered with a demand for fewer calls
	waitsOut  int // how often waitOut was called

	asked    int     // number of the attempt for which askCost has set cost and tenant, or 0
	cost     float64 // taken from the rate
	tenant   string
	refunded int        // number of the attempt whose cost was refunded, or 0
	call     *gate.Call // the batch of the attempt, or nil

	// metOutage is true in two cases. The last attempt met an outage of the backend, or
	// the time of the element ran out in a wait for the end of an outage. An outage of
	// its tenant does not count: see report.
	metOutage bool
}

// forgiven returns how many attempts of s do not count: throttled attempts (law B6), and
// up to maxForgiven that met an outage.
func (b *atBackend[IN, OUT]) forgiven(s *Slot[IN, OUT]) int {
	of := b.requests.get(s.index)
	return min(of.outages, maxForgiven) + of.throttled
}

// mayWaitOut reports whether s may wait beyond its deadline for the end of an outage.
// With FromAttempt, an element that waits for a retry may, up to maxForgiven times.
func (b *atBackend[IN, OUT]) mayWaitOut(s *Slot[IN, OUT]) bool {
	g := b.core
	isWaiting := s.phase == ready || s.phase == backoff
	return g.FromAttempt && isWaiting && b.requests.get(s.index).waitsOut < maxForgiven &&
		b.seat.IsDown(g.Timers.Time(g.now), b.requests.get(s.index).tenant)
}

// isTenantPaused reports whether the tenant of s is paused for so long that a message
// must leave its slot.
func (b *atBackend[IN, OUT]) isTenantPaused(s *Slot[IN, OUT]) bool {
	tenant := b.requests.get(s.index).tenant
	return tenant != "" && b.seat.IsTenantPaused(b.core.Timers.Time(b.core.now), tenant)
}

// waitOut lets s wait beyond its deadline for the end of an outage. Its time begins anew
// with its next attempt.
func (b *atBackend[IN, OUT]) waitOut(s *Slot[IN, OUT]) {
	b.requests.ref(s.index).waitsOut++
	b.core.stopTimeout(s)
}

// isVisited reports whether s has visited the service: it had an attempt that was not
// throttled (law B6).
func (b *atBackend[IN, OUT]) isVisited(s *Slot[IN, OUT]) bool {
	return int(s.attempts) > b.requests.get(s.index).throttled
}

// takeRetry takes a retry from the retry budget, and reports whether there was one.
func (b *atBackend[IN, OUT]) takeRetry() bool {
	return b.seat.MayRetry(b.core.Timers.Time(b.core.now))
}

// doneAsking reports that the operator has asked for all calls of this step.
func (b *atBackend[IN, OUT]) doneAsking() {
	b.seat.DoneAsking(b.core.Timers.Time(b.core.now), b.wasRefused)
}

// admit asks for an attempt of s. A member joins the call of its batch.
func (b *atBackend[IN, OUT]) admit(s *Slot[IN, OUT], isMember bool) permission {
	if b.Budget > 0 && b.spent >= b.Budget {
		b.refusedByBudget = true
		return refused
	}
	if isMember {
		return b.join(s)
	}
	if b.wasRefused {
		return refused
	}
	g := b.core
	b.request = gate.Request{Cost: 1, Retry: s.attempts > 0, Outages: b.requests.get(s.index).outages, Element: element(s)}
	b.request.Hurried = g.isHurried(s, g.now)
	p := b.askCost(s)
	if p != granted {
		return p
	}
	answer := b.seat.Start(g.Timers.Time(g.now), &b.request)
	switch {
	case answer.Wait == 0:
		g.stamp = answer.Stamp
		if g.batches != nil {
			b.lastBatch = &gate.Call{Element: b.request.Element, Left: 1}
			b.requests.ref(s.index).call = b.lastBatch
		}
		return granted
	case answer.OthersMayStart: // the tenant of s must wait
		if !answer.TenantIsDown || !g.leaveForTenant(s) {
			b.putOff(s, answer.Wait)
		}
		return passedOver
	default:
		b.wasRefused = true
		return refused
	}
}

// join asks for the attempt of a member. Its batch has been admitted.
func (b *atBackend[IN, OUT]) join(s *Slot[IN, OUT]) permission {
	b.request = gate.Request{Retry: s.attempts > 0}
	p := b.askCost(s)
	if p != granted {
		return p
	}
	b.seat.Join(&b.request)
	b.lastBatch.Left++
	b.requests.ref(s.index).call = b.lastBatch
	return granted
}

// Spent returns the settled cost of all calls, including earlier runs.
func (g *Machine[IN, OUT]) Spent() float64 {
	if g.backend == nil {
		return 0
	}
	return g.backend.spent
}

// AddSpent adds the cost of earlier runs.
func (g *Machine[IN, OUT]) AddSpent(cost float64) {
	if g.backend != nil {
		g.backend.spent += cost
	}
}

// MustEndForBudget reports whether the run must end: its budget is spent, all calls have
// ended, and elements still need a call. An element whose call was refused may have timed
// out meanwhile: then it does not need one.
func (g *Machine[IN, OUT]) MustEndForBudget() bool {
	isIdle := g.freePermits == g.MaxCalls && g.state.Stats.Deciding == 0 && (g.lookups == nil || g.lookups.reservedRunning == 0)
	return g.backend != nil && g.backend.refusedByBudget && isIdle && g.startable() > 0
}

// takenCost returns the cost that the attempt of s has taken from the rate.
func (b *atBackend[IN, OUT]) takenCost(s *Slot[IN, OUT]) float64 {
	of := b.requests.get(s.index)
	switch {
	case of.refunded == int(s.attempts):
		return 0
	case of.asked == int(s.attempts):
		return of.cost
	case b.hasJoined(s): // the first member has taken the cost of the call
		return 0
	}
	return 1
}

// hasJoined reports whether s is a later member of its batch.
func (b *atBackend[IN, OUT]) hasJoined(s *Slot[IN, OUT]) bool {
	c := b.requests.get(s.index).call
	return c != nil && c.Element != element(s)
}

// refund gives the cost of the attempt of s back to the rate, once, because the attempt
// needs no call of its own.
func (b *atBackend[IN, OUT]) refund(s *Slot[IN, OUT]) {
	of := b.requests.get(s.index)
	if of.refunded == int(s.attempts) {
		return
	}
	g := b.core
	g.refresh()
	request := gate.Request{Cost: b.takenCost(s), Tenant: of.tenant, Element: element(s), Joined: b.hasJoined(s)}
	b.seat.Refund(g.Timers.Time(g.now), &request)
	b.requests.ref(s.index).refunded = int(s.attempts)
}

// chargeNoRate records that the next attempt of s makes no call, so that it takes no cost
// from the rate.
func (b *atBackend[IN, OUT]) chargeNoRate(s *Slot[IN, OUT]) {
	b.requests.ref(s.index).refunded = int(s.attempts) + 1
}

// element identifies s at the backend.
func element[IN, OUT any](s *Slot[IN, OUT]) uint64 {
	return uint64(s.accepted)<<16 | uint64(uint16(s.index))
}

// askCost sets the cost and the tenant in b.request. It calls the user's functions once
// for each attempt. If they panic, s fails. If the time of s has run out meanwhile, the
// attempt does not start.
func (b *atBackend[IN, OUT]) askCost(s *Slot[IN, OUT]) permission {
	if !b.HasCost && !b.HasTenant && !b.HasKey {
		return granted
	}
	g := b.core
	number := int(s.attempts) + 1
	of := b.requests.get(s.index)
	if of.asked == number {
		b.request.Cost, b.request.Tenant = of.cost, of.tenant
		return granted
	}
	err := b.callUser(s)
	c := b.request.Cost
	if err == nil && !(c >= 0 && c <= math.MaxFloat64) { // rejects NaN, too
		err = fmt.Errorf("asyncop: Cost: want a finite number of 0 or more: %v", c)
	}
	if err != nil {
		g.endWait(s)
		g.failElement(s, err)
		return passedOver
	}
	known := b.requests.ref(s.index)
	known.asked = number
	known.cost, known.tenant = b.request.Cost, b.request.Tenant
	g.refresh()
	g.overdue = g.now >= s.due
	if g.overdue {
		return refused
	}
	return granted
}

func (b *atBackend[IN, OUT]) callUser(s *Slot[IN, OUT]) (err error) {
	b.core.ranCode = true
	name, returned := "the function of Cost", false
	defer func() {
		if !returned {
			err = b.core.noteBroken(name, recover())
		}
	}()
	if b.HasCost {
		b.request.Cost = b.core.User.CostOf(s.in)
	}
	if b.HasTenant {
		name = "the function of Tenant"
		b.request.Tenant = b.core.User.TenantOf(s.in)
	}
	if b.HasKey {
		b.request.Tenant = b.core.messages.key(s)
	}
	returned = true
	return nil
}

// putOff makes s wait as in a back-off, because its tenant must wait. The end of the
// input does not cut this wait.
func (b *atBackend[IN, OUT]) putOff(s *Slot[IN, OUT], wait time.Duration) {
	b.core.putOff(s, later(b.core.now, wait))
	s.retry |= Demanded
}

// asksAgainAt returns when to ask again: Now, an instant, or Never if the budget is spent
// or the backend will wake the operator.
func (b *atBackend[IN, OUT]) asksAgainAt() time.Duration {
	if b.refusedByBudget {
		return Never
	}
	if !b.wasRefused {
		return Now
	}
	g := b.core
	calls := g.startable()
	if g.batches != nil {
		calls = g.batches.calls(calls)
	}
	switch wait := b.seat.Wait(g.Timers.Time(g.now), min(calls, g.freePermits)); wait {
	case 0:
		return Now
	case gate.Never:
		return Never
	default:
		return later(g.now, wait)
	}
}

// reportIgnored reports the end of the attempt of s, whose message was purged or snoozed.
// It is not evidence about the service. If the call may have been sent and has not
// reported its cost, it costs as much as it has taken from the rate.
func (b *atBackend[IN, OUT]) reportIgnored(s *Slot[IN, OUT], t *call.Token) {
	cost, isReported := t.Cost()
	if !isReported && s.phase == running {
		cost, isReported = b.takenCost(s), true
	}
	b.report(s, gate.Evidence{Ignored: true, Borrowed: t.Borrowed(), Reported: cost, IsReported: isReported})
}

// report reports the end of the attempt of s. It reports whether a retry is free: after
// an outage or throttling, the retry uses neither the retry budget nor Policy.MaxRetries.
func (b *atBackend[IN, OUT]) report(s *Slot[IN, OUT], e gate.Evidence) (isFree bool) {
	g := b.core
	if e.Borrowed {
		b.refund(s)
	}
	of := b.requests.get(s.index)
	b.evidence = e
	b.evidence.Begun, b.evidence.Element = g.Timers.Time(s.lastBegan), element(s)
	b.evidence.Tenant, b.evidence.Call = of.tenant, of.call
	b.evidence.Cost = b.takenCost(s)
	effect := b.seat.AttemptEnded(g.Timers.Time(g.now), &b.evidence)
	b.spent += b.evidence.Cost // set by AttemptEnded
	of.metOutage = false
	switch effect {
	case gate.Outage:
		of.outages++
		isOfTenant := of.tenant != "" && b.core.Host.Backend.BreaksTenants() // each tenant has its own outages
		of.metOutage = !isOfTenant
	case gate.Throttled:
		of.throttled++
	case gate.Counts:
	}
	of.call = nil
	if of != b.requests.get(s.index) {
		*b.requests.ref(s.index) = of
	}
	b.evidence.Err, b.evidence.Call = nil, nil
	return effect != gate.Counts
}

// outage returns the name of the backend if its outage made s fail, or "".
func (b *atBackend[IN, OUT]) outage(s *Slot[IN, OUT]) string {
	if !b.requests.get(s.index).metOutage {
		return ""
	}
	return b.core.Host.Backend.Report().Name
}

// noteWaited notes an outage of s, which was refused until its deadline, if the backend
// is not up.
func (b *atBackend[IN, OUT]) noteWaited(s *Slot[IN, OUT]) {
	if b.seat.IsDown(b.core.Timers.Time(b.core.now), "") {
		b.requests.ref(s.index).metOutage = true
	}
}

// whyWaited returns why the backend made s wait until its deadline, and for how long it
// will refuse calls. why is nil if s could have started.
func (b *atBackend[IN, OUT]) whyWaited(s *Slot[IN, OUT]) (why error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	g := b.core
	waitedForKey := g.lookups != nil && g.lookups.sharesKey(s) // for the retry of its key
	isPutOff := s.attempts == 0 && s.phase == backoff && !waitedForKey
	late := gate.Late{Tenant: b.requests.get(s.index).tenant, PutOff: isPutOff}
	late.Throttled = s.attempts > 0 && !b.isVisited(s)
	if s.attempts > 0 {
		late.Begun = g.Timers.Time(s.lastBegan)
		// If the service has answered others since the message failed, the message itself
		// may be the cause: see gate.ErrAnswered.
		ctx := g.contextForReport(s)
		if ctx != g.Host.Values { // otherwise there is no message
			_ = call.OffLoop(func() error { // to read an observer's context is to run user code
				meta, _ := message.MetaFromContext(ctx)
				late.Failed = meta.LastFailure
				return nil
			})
		}
	}
	return b.seat.WhyWaiting(g.Timers.Time(g.now), &late)
}
