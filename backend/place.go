package backend

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// place is the place of an operator. A place that is refused sleeps until it is woken, or as long as Wait says: it has neither a
// goroutine nor a timer here (law B2).
type place struct {
	backend *Backend
	wake    func()
	lent    int  // calls that run on the permit of the call around the operator
	joined  bool // the loop's: it is in waiting, as far as the loop knows

	// Guarded by Backend.mu.
	calls  int
	aside  int     // permits that were set aside, and their part of the rate
	wants  int     // as many may be
	asleep bool    // it comes when it is woken
	waits  bool    // is in Backend.waiting
	cost   float64 // of the attempt that was refused last
}

var _ gate.Place = (*place)(nil)

// Start implements gate.Place.
func (p *place) Start(now time.Time, a *gate.Attempt) gate.Answer {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	p.asleep = false
	var answer gate.Answer
	if b.state == Open && a.Tenant == "" && len(b.waiting) == 0 && b.used < b.limit && p.calls >= p.lent && b.pay(t, a.Cost) {
		b.used++
		p.calls++
		answer = b.started(t, a)
	} else {
		answer = p.ask(t, a)
	}
	if b.lines != nil {
		b.unlock()
		return answer
	}
	b.mu.Unlock()
	return answer
}

// pay takes the part of an attempt of the rate of an open backend, if it is there.
func (b *Backend) pay(t time.Duration, cost float64) bool {
	if !b.rate.isSet() {
		return true
	}
	b.rate.fill(t, 1)
	if b.rate.wait(cost) > 0 {
		return false
	}
	b.rate.level -= cost
	return true
}

// started counts an attempt.
func (b *Backend) started(t time.Duration, a *gate.Attempt) gate.Answer {
	b.counts.Started++
	if !a.Retry && b.retries.isSet() {
		b.retries.give(b.retryShare)
	}
	if b.limiter != nil && b.limiter.wantsSample(t) {
		return gate.Answer{Stamp: gate.StampOf(t)}
	}
	return gate.Answer{}
}

// ask is the way of an attempt that not everything speaks for. All say yes, or nothing is taken.
func (p *place) ask(t time.Duration, a *gate.Attempt) gate.Answer {
	b := p.backend
	b.advance(t)
	switch b.state {
	case Held:
		return p.refuse(a, gate.Never)
	case Closed:
		return p.refuse(a, b.until-t)
	case Probing:
		if b.trying {
			return p.refuse(a, gate.Never)
		}
		if wait := p.mayProbe(t, a); wait > 0 {
			return gate.Answer{Wait: wait, Other: true}
		}
	case Open, Ramping:
	}
	var x *tenant
	if a.Tenant != "" && !b.tenants.isIdle() {
		x = b.tenants.find(a.Tenant, t, false)
		if x != nil {
			if wait := x.wait(t, a.Cost); wait > 0 {
				return gate.Answer{Wait: wait, Other: true}
			}
		}
	}
	if !p.take(t, a) {
		return p.refuse(a, gate.Never)
	}
	if x != nil {
		x.rate.take(a.Cost)
		if x.until > 0 {
			x.prober = p
		}
	}
	if b.state == Probing {
		b.trying, b.prober = true, probe{p, a.Element}
	}
	p.calls++
	return b.started(t, a)
}

// mayProbe returns when an element may try the service; 0: now. Those that have met the outage let the others go first, and the last one
// all (law B4), unless none comes.
func (p *place) mayProbe(t time.Duration, a *gate.Attempt) time.Duration {
	b := p.backend
	wait := time.Duration(min(a.Outages, 3)) * time.Second
	if b.prober == (probe{p, a.Element}) {
		wait += time.Second
	}
	return max(0, b.since+wait-t)
}

// take takes a permit and its part of the rate.
func (p *place) take(t time.Duration, a *gate.Attempt) bool {
	b := p.backend
	b.rate.fill(t, b.part(t))
	lent := p.calls < p.lent
	switch {
	case !lent && p.aside > 0:
		p.aside--
		b.rate.give(p.cost)
		b.rate.take(a.Cost)
		return true
	case !lent && b.used >= b.allowed(t), b.rate.wait(a.Cost) > 0:
		return false
	case !lent && len(b.waiting) > 0 && b.state != Probing:
		p.cost = a.Cost
		p.join()
		if !b.handOut(t, p) {
			return false
		}
	}
	if !lent {
		b.used++
	}
	b.rate.take(a.Cost)
	return true
}

// refuse makes the place wait.
func (p *place) refuse(a *gate.Attempt, wait time.Duration) gate.Answer {
	p.cost = a.Cost
	p.join()
	return gate.Answer{Wait: wait}
}

func (p *place) join() {
	p.joined = true
	if !p.waits {
		p.waits = true
		p.backend.waiting = append(p.backend.waiting, p)
	}
}

// Release implements gate.Place.
func (p *place) Release(stamp gate.Stamp) {
	b := p.backend
	var t time.Duration
	if stamp != 0 {
		t = b.now()
	}
	b.mu.Lock()
	if stamp != 0 && (b.state == Open || b.state == Ramping) {
		if took := stamp.Since(t); t-took >= b.begun {
			b.limit = b.limiter.sample(t, took, b.used)
		}
	}
	if p.calls--; p.calls >= p.lent {
		b.used--
		if len(b.waiting) > 0 {
			b.freed(t)
		}
	} else if p.waits {
		p.wake() // it has a lent one again
	}
	if b.lines != nil {
		b.unlock()
		return
	}
	b.mu.Unlock()
}

// freed hands out a permit that has come back. Its time is read where it matters.
func (b *Backend) freed(t time.Duration) {
	if t == 0 && (b.rate.isSet() || b.state != Open) {
		t = b.now()
	}
	b.handOut(t, nil)
}

// Heard implements gate.Place.
func (p *place) Heard(now time.Time, o *gate.Outcome) (outage bool) {
	b := p.backend
	lost, demanded := false, time.Duration(0)
	if !o.Ignored && (o.Err != nil || o.TimedOut || !o.Reason.IsZero() || o.Pushback > 0) {
		lost, demanded = isLoss(o), pushback(o)
		lost = lost || demanded > 0
	}
	b.mu.Lock()
	if b.state == Open && !lost && o.Tenant == "" {
		if !o.Ignored {
			b.calls.note(false)
		}
		b.mu.Unlock()
		return false
	}
	outage = p.hear(now.Sub(b.epoch), o.Begun.Sub(b.epoch), o, lost, demanded)
	b.unlock()
	return outage
}

// hear is the way of an outcome that may change something.
func (p *place) hear(t, begun time.Duration, o *gate.Outcome, lost bool, demanded time.Duration) (outage bool) {
	b := p.backend
	b.advance(t)
	isProbe := b.state == Probing && b.trying && b.prober == probe{p, o.Element}
	if o.Ignored {
		if isProbe {
			b.trying = false
			b.handOut(t, nil)
		}
		if x := b.tenants.all[o.Tenant]; x != nil && x.prober == p {
			x.prober = nil
		}
		return false
	}
	if lost {
		b.counts.Lost++
		if b.limiter != nil && begun >= b.begun {
			b.limit = b.limiter.lost(t)
		}
	}
	if o.Tenant != "" && p.hearTenant(t, o, lost, demanded) {
		if isProbe { // the service has answered: this is the tenant's own business
			b.reopen(t)
		}
		return true
	}
	switch {
	case b.state == Held || b.state == Closed && demanded == 0:
	case demanded > 0:
		if until := t + min(demanded, b.longest); b.state != Closed || until > b.until {
			b.close(t, demanded, "the server asks to wait "+demanded.String())
		}
	case isProbe && lost:
		b.close(t, 0, "a probe was lost: "+describe(o))
	case isProbe:
		b.reopen(t)
	case b.state == Probing || begun < b.begun:
	default:
		p.count(t, o, lost)
	}
	return lost && !b.dryRun && (b.state != Open || b.calls.row > 1 || begun < b.begun)
}

// count notes the outcome of a call of an open or ramping backend.
func (p *place) count(t time.Duration, o *gate.Outcome, lost bool) {
	b := p.backend
	b.calls.note(lost)
	switch {
	case lost && b.isFailing():
		b.close(t, 0, b.calls.String()+" were lost, the last one: "+describe(o))
	case !lost && b.state == Ramping:
		b.answered++
		b.advance(t)
		b.handOut(t, nil)
	}
}

// hearTenant closes a tenant, or opens it. It reports whether the outcome is only the tenant's.
func (p *place) hearTenant(t time.Duration, o *gate.Outcome, lost bool, demanded time.Duration) bool {
	b := p.backend
	x := b.tenants.find(o.Tenant, t, demanded > 0)
	if x == nil {
		return false
	}
	tried := x.prober == p
	if tried {
		x.prober = nil
	}
	switch {
	case b.dryRun:
		return false
	case demanded > 0:
		x.until, x.pause = max(x.until, t+min(demanded, b.longest)), 0
		return true
	case tried && lost:
		x.pause = min(max(b.firstPause, 2*x.pause), b.longerPause)
		x.until = t + x.pause
	case tried:
		x.until, x.pause = 0, 0
	}
	return false
}

// describe returns what was lost, in a few words.
func describe(o *gate.Outcome) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", o.Err)
		}
	}()
	switch {
	case o.Err != nil:
		text = o.Err.Error()
	case !o.Reason.IsZero():
		return o.Reason.Name()
	default:
		return "a timeout"
	}
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}

// MayRetry implements gate.Place.
func (p *place) MayRetry(now time.Time) bool {
	b := p.backend
	if b.retryShare < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retries.fill(now.Sub(b.epoch), 1)
	if b.retries.wait(1) > 0 {
		b.counts.RetriesRefused++
		return false
	}
	b.retries.take(1)
	return true
}

// Wait implements gate.Place.
func (p *place) Wait(now time.Time, wants int) time.Duration {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.advance(t)
	p.asleep, p.wants = true, wants
	switch b.state {
	case Held:
		return gate.Never
	case Closed:
		return b.until - t
	case Probing:
		if b.trying || b.used >= b.limit {
			return gate.Never
		}
		return 0
	case Open, Ramping:
	}
	b.handOut(t, nil)
	if p.aside > 0 || p.calls < p.lent {
		return 0
	}
	b.rate.fill(t, b.part(t))
	wait := b.rate.wait(p.cost)
	if b.used >= b.allowed(t) {
		if b.state != Ramping || b.used >= b.limit {
			return gate.Never
		}
		wait = max(wait, b.grows(t))
	}
	return wait
}

// Settle implements gate.Place.
func (p *place) Settle(now time.Time, isShort bool) {
	if !p.joined {
		return
	}
	b := p.backend
	b.mu.Lock()
	defer b.unlock()
	p.asleep, p.wants = false, 0
	had := p.aside
	b.drop(p)
	if !isShort {
		p.part()
	}
	if had > 0 {
		b.handOut(now.Sub(b.epoch), nil)
	}
}

// part takes the place out of those that wait.
func (p *place) part() {
	b := p.backend
	p.joined, p.waits = false, false
	b.waiting = slices.DeleteFunc(b.waiting, func(other *place) bool { return other == p })
}

// Closed implements gate.Place.
func (p *place) Closed(now time.Time) (err error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.advance(t)
	switch b.state {
	case Closed:
		return b.closedError(), b.until - t
	case Probing:
		return b.closedError(), b.firstPause
	case Held:
		return b.closedError(), b.longerPause
	case Open, Ramping:
	}
	return nil, 0
}

func (b *Backend) closedError() error {
	return fmt.Errorf("backend %s is %v: %s", b.name, b.state, b.why)
}

// Leave implements gate.Place.
func (p *place) Leave() {
	b := p.backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	b.drop(p)
	p.part()
	if b.trying && b.prober.place == p {
		b.trying = false
	}
	for _, x := range b.tenants.all {
		if x.prober == p {
			x.prober = nil
		}
	}
	b.handOut(t, nil)
}
