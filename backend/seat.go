package backend

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// seat is the seat of an operator. A seat that is refused sleeps until it is woken, or as long as Wait says: it has neither a
// goroutine nor a timer here (law B2).
type seat struct {
	backend *Backend
	sleeper gate.Sleeper
	lent    int  // calls that run on the permit of the call around the operator
	joined  bool // the loop's: it is in waiting, as far as the loop knows

	// Guarded by Backend.mu.
	calls  int
	aside  int           // permits that were set aside, and their part of the rate
	wants  int           // as many may be
	gave   bool          // some of it was given back in this turn
	asleep bool          // it sleeps, or was woken and has not asked
	waits  bool          // is in Backend.waiting
	cost   float64       // of the attempt that was refused last
	wakes  time.Duration // by itself, if it is asleep
	awake  time.Duration // when it was found to be; 0: it was not, since it fell asleep
}

var _ gate.Seat = (*seat)(nil)

// Start implements gate.Seat.
func (p *seat) Start(now time.Time, a *gate.Attempt) gate.Answer {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	p.asleep = false
	var answer gate.Answer
	if b.state == Up && len(b.waiting) == 0 && b.used < b.limit && p.calls >= p.lent && b.pay(t, a) {
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

// pay takes the attempt's part of the rates of a backend that is up, if all is there and nothing else speaks against its tenant.
func (b *Backend) pay(t time.Duration, a *gate.Attempt) bool {
	var x *tenant
	if a.Tenant != "" && !b.tenants.isIdle() {
		if x = b.tenants.find(a.Tenant, t, false); x != nil && (x.until > 0 || x.wait(t, a.Cost) > 0) {
			return false
		}
	}
	if b.rate.isSet() {
		b.rate.fill(t, 1)
		if b.rate.wait(a.Cost) > 0 {
			return false
		}
		b.rate.take(a.Cost)
	}
	if x != nil {
		x.rate.take(a.Cost)
	}
	return true
}

// started counts an attempt.
func (b *Backend) started(t time.Duration, a *gate.Attempt) gate.Answer {
	b.counts.Started++
	if !a.Retry && b.retries.isSet() {
		b.retries.give(b.retryShare)
	}
	if b.state == Ramping || b.limiter != nil && b.limiter.wantsSample(t) {
		return gate.Answer{Stamp: gate.StampOf(t)}
	}
	return gate.Answer{}
}

// ask is the way of an attempt that not everything speaks for. All say yes, or nothing is taken.
func (p *seat) ask(t time.Duration, a *gate.Attempt) gate.Answer {
	b := p.backend
	b.advance(t)
	switch b.state {
	case Held:
		return p.refuse(a, gate.Never)
	case Down:
		return p.refuse(a, b.until-t)
	case Probing:
		if wait := b.probes(t); wait > 0 {
			return p.refuse(a, wait)
		}
		if wait := p.mayProbe(t, a); wait > 0 {
			return gate.Answer{Wait: wait, Other: true}
		}
	case Up, Ramping:
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
			x.prober, x.tried = probe{p, a.Element}, t
		}
	}
	if b.state == Probing {
		b.trying, b.tried, b.prober = true, t, probe{p, a.Element}
	}
	p.calls++
	return b.started(t, a)
}

// mayProbe returns when an element may try the service; 0: now. Those that have met the outage let the others go first, and the last one
// all (law B4), unless none comes.
func (p *seat) mayProbe(t time.Duration, a *gate.Attempt) time.Duration {
	b := p.backend
	wait := time.Duration(min(a.Outages, 3)) * time.Second
	if a.Hurried { // a probe may take its time, and an element whose call is cut off has failed
		wait += time.Second
	}
	if b.prober == (probe{p, a.Element}) {
		wait += time.Second
	}
	return max(0, b.since+wait-t)
}

// take takes a permit and its part of the rate.
func (p *seat) take(t time.Duration, a *gate.Attempt) bool {
	b := p.backend
	b.rate.fill(t, b.part(t))
	lent := p.calls < p.lent
	had := p.aside > 0
	inTurn := lent || had || b.state == Probing
	if had { // the limit stands, and the cost may be another
		b.drop(p, 1)
	}
	if !lent && b.used >= b.allowed(t) || b.rate.wait(a.Cost) > 0 {
		p.gave = p.gave || had
		return false
	}
	if !inTurn && len(b.waiting) > 0 {
		p.cost = a.Cost
		p.join()
		if !b.handOut(t, p) {
			return false
		}
	}
	if lent {
		p.gave = p.gave || had
	} else {
		b.used++
	}
	b.rate.take(a.Cost)
	return true
}

// refuse makes the seat wait.
func (p *seat) refuse(a *gate.Attempt, wait time.Duration) gate.Answer {
	p.gave = p.gave || p.aside > 0
	p.backend.drop(p, p.aside) // at the cost that it was taken for
	p.cost = a.Cost
	p.join()
	return gate.Answer{Wait: wait}
}

func (p *seat) join() {
	p.joined = true
	if !p.waits {
		p.waits = true
		p.backend.waiting = append(p.backend.waiting, p)
	}
}

// Release implements gate.Seat.
func (p *seat) Release(stamp gate.Stamp) {
	b := p.backend
	var t time.Duration
	if stamp != 0 {
		t = b.now()
	}
	b.mu.Lock()
	older := true
	if stamp != 0 && (b.state == Up || b.state == Ramping) {
		took := stamp.Since(t)
		if older = t-took < b.begun; !older && b.limiter != nil {
			b.bound(b.limiter.sample(t, took, b.used))
		}
	}
	if p.calls--; p.calls >= p.lent {
		b.used--
		if older {
			b.older = max(0, b.older-1)
		}
		if len(b.waiting) > 0 {
			b.freed(t)
		}
	} else if p.waits {
		p.sleeper.WakeUp() // it has a lent one again
	}
	if b.lines != nil {
		b.unlock()
		return
	}
	b.mu.Unlock()
}

// freed hands out a permit that has come back.
func (b *Backend) freed(t time.Duration) {
	if t == 0 {
		t = b.now()
	}
	b.handOut(t, nil)
}

// AttemptEnded implements gate.Seat.
func (p *seat) AttemptEnded(now time.Time, o *gate.Evidence) (outage bool) {
	b := p.backend
	lost, demanded := false, time.Duration(0)
	if !o.Ignored && (o.Err != nil || !o.Reason.IsZero() || o.Pushback > 0) {
		lost, demanded = isLoss(o), pushback(o)
		lost = lost || demanded > 0
	}
	shared := o.Borrowed && lost && !b.dryRun
	if o.Borrowed { // the call is heard of by the element that has made it
		o.Ignored, lost, demanded = true, false, 0
	}
	text := ""
	if lost || o.Call != nil { // without the lock: an error is user code
		text = describe(o)
	}
	b.mu.Lock()
	// What the element had waited before has cut it off, not the service, if that answers others. On the ramp those that have waited go first.
	if o.Cut && lost && (b.state == Ramping || b.answeredAt > o.Begun.Sub(b.epoch)) {
		o.Ignored, lost, demanded = true, false, 0
	}
	inOutage := b.state != Up || b.calls.row > 0 || o.Begun.Sub(b.epoch) < b.begun
	outage = shared && inOutage
	if c := o.Call; c != nil {
		outage = outage || lost && !b.dryRun && (demanded > 0 || inOutage)
		if lost, demanded = merge(c, o, lost, demanded); c.Left > 0 {
			b.mu.Unlock()
			return outage
		}
		*c = gate.Call{Element: c.Element}
	}
	if !lost && !o.Ignored {
		b.answeredAt = max(b.answeredAt, now.Sub(b.epoch))
		if b.limiter != nil && o.Begun.Sub(b.epoch) >= b.begun {
			b.limiter.answered()
		}
	}
	if b.state == Up && !lost && (o.Tenant == "" || !b.tenants.tries(o.Tenant)) {
		if !o.Ignored {
			b.calls.note(false)
		}
		b.mu.Unlock()
		return outage
	}
	outage = p.hear(now.Sub(b.epoch), o, lost, demanded, text) || outage
	b.unlock()
	return outage
}

// merge adds the outcome of one of its elements to that of a call. When all were heard, o and what it returns are the outcome of the call.
func merge(c *gate.Call, o *gate.Evidence, lost bool, demanded time.Duration) (bool, time.Duration) {
	c.Left--
	c.Answered = c.Answered || !o.Ignored && !lost
	c.Lost = c.Lost || lost
	c.Demanded = max(c.Demanded, demanded)
	o.Element, o.Ignored = c.Element, !c.Answered && !c.Lost
	if c.Answered {
		return false, 0
	}
	return c.Lost, c.Demanded
}

// Join implements gate.Seat.
func (p *seat) Join(a *gate.Attempt) {
	b := p.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate.take(a.Cost)
	if !a.Retry {
		b.retries.give(b.retryShare)
	}
}

// hear is the way of an outcome that may change something. text says what was lost.
func (p *seat) hear(t time.Duration, o *gate.Evidence, lost bool, demanded time.Duration, text string) (outage bool) {
	b := p.backend
	begun := o.Begun.Sub(b.epoch)
	b.advance(t)
	isProbe := b.state == Probing && begun >= b.since // perhaps not the last one
	if o.Ignored {
		if isProbe && b.prober == (probe{p, o.Element}) {
			b.trying = false
			b.handOut(t, nil)
		}
		if x := b.tenants.all[o.Tenant]; x != nil && x.prober == (probe{p, o.Element}) {
			x.prober = probe{}
		}
		return false
	}
	if lost {
		b.counts.Lost++
		if b.limiter != nil && begun >= b.begun {
			b.bound(b.limiter.lost(t))
		}
	}
	if o.Tenant != "" && p.hearTenant(t, o, lost, demanded) {
		if isProbe { // the service has answered: this is the tenant's own business
			b.startRamp(t)
		}
		return true
	}
	if isProbe && lost && b.dryRun { // else it stays down
		b.startRamp(t)
	}
	switch {
	case b.state == Held || b.state == Down && demanded == 0:
	case demanded > 0:
		if until := t + min(demanded, b.longest); b.state != Down || until > b.until {
			b.goDown(t, demanded, "the server asks to wait "+demanded.String())
		}
	case isProbe && lost:
		b.goDown(t, 0, "a probe was lost: "+text)
	case isProbe:
		b.startRamp(t)
	case b.state == Probing || begun < b.begun:
	default:
		p.count(t, lost, text)
	}
	if b.dryRun && lost && !isProbe && begun >= b.begun { // it would never be up again
		b.grow(t)
	}
	return lost && !b.dryRun && (b.state != Up || b.calls.row > 1 || begun < b.begun)
}

// count notes the outcome of a call of a backend that is up or ramping.
func (p *seat) count(t time.Duration, lost bool, text string) {
	b := p.backend
	b.calls.note(lost)
	switch {
	case lost && b.isFailing():
		b.goDown(t, 0, b.calls.String()+" were lost, the last one: "+text)
	case !lost:
		b.grow(t)
	}
}

// grow lets the load of a ramp grow by a call.
func (b *Backend) grow(t time.Duration) {
	if b.state == Ramping {
		b.answered++
		b.advance(t)
		b.handOut(t, nil)
	}
}

// hearTenant pauses a tenant, or ends its pause. It reports whether the outcome is only the tenant's.
func (p *seat) hearTenant(t time.Duration, o *gate.Evidence, lost bool, demanded time.Duration) bool {
	b := p.backend
	x := b.tenants.find(o.Tenant, t, demanded > 0)
	if x == nil {
		return false
	}
	tried := x.until > 0 && o.Begun.Sub(b.epoch) >= x.until // by this call, which need not be the last one that tries
	if tried || x.prober == (probe{p, o.Element}) {
		x.prober = probe{}
	}
	switch {
	case b.dryRun:
		return false
	case demanded > 0:
		x.until, x.pause = max(x.until, t+min(demanded, b.longest)), 0
		return true
	case tried && lost:
		x.pause = min(max(firstPause, 2*x.pause), longerPause)
		x.until = t + x.pause
	case tried:
		x.until, x.pause = 0, 0
	}
	return false
}

// describe returns what was lost, in a few words.
func describe(o *gate.Evidence) string {
	switch {
	case o.Err != nil:
	case !o.Reason.IsZero():
		return o.Reason.Name()
	default:
		return "a timeout"
	}
	text := guard.Text(o.Err)
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}

// MayRetry implements gate.Seat.
func (p *seat) MayRetry(now time.Time) bool {
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

// Wait implements gate.Seat.
func (p *seat) Wait(now time.Time, wants int) time.Duration {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.advance(t)
	p.asleep, p.awake, p.wakes, p.wants = p.sleeper.IsParked(), 0, 0, wants
	b.handOut(t, nil)
	b.rate.fill(t, b.part(t))
	wait := p.mustSleep(t, b.first(t, p))
	p.wakes = later(t, wait)
	return wait
}

// mustSleep returns how long the seat has to sleep, as far as is known, if first is the one whose turn it is. The rate is filled.
func (p *seat) mustSleep(t time.Duration, first *seat) time.Duration {
	b := p.backend
	lent := p.calls < p.lent
	wait := b.rate.wait(p.cost)
	switch b.state {
	case Held:
		return gate.Never
	case Down:
		return b.until - t
	case Probing:
		if !lent && b.used >= b.limit {
			return gate.Never
		}
		return max(wait, b.probes(t))
	case Up, Ramping:
	}
	switch {
	case p.aside > 0:
		return 0
	case lent:
		return wait
	case b.used >= b.limit:
		return gate.Never
	case b.used >= b.allowed(t):
		return max(wait, b.grows(t))
	case first != nil && first != p:
		wait = max(wait, b.rate.wait(first.cost)+b.rate.takes(p.cost))
		if first.awake > 0 {
			wait = max(wait, first.awake+comes-t)
		}
	}
	return wait
}

// DoneAsking implements gate.Seat.
func (p *seat) DoneAsking(now time.Time, isShort bool) {
	if !p.joined {
		return
	}
	b := p.backend
	b.mu.Lock()
	defer b.unlock()
	p.asleep, p.wants = false, 0
	if p.aside > 0 || p.gave || !isShort { // else nothing has changed for the others
		b.drop(p, p.aside)
		p.gave = false
		if !isShort {
			p.part()
		}
		b.handOut(now.Sub(b.epoch), nil)
	}
}

// part takes the seat out of those that wait.
func (p *seat) part() {
	b := p.backend
	p.joined, p.waits = false, false
	b.waiting = slices.DeleteFunc(b.waiting, func(other *seat) bool { return other == p })
}

// WhyWaiting implements gate.Seat.
func (p *seat) WhyWaiting(now time.Time, l *gate.Late) (err error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.advance(t)
	switch b.state {
	case Down:
		return b.downError(l), b.until - t
	case Probing:
		return b.downError(l), firstPause
	case Held:
		return b.downError(l), longerPause
	case Ramping: // it has waited for the end of the outage, and had no time
		return b.downError(l), max(b.since+ramp-t, askAgain)
	case Up:
		if b.limit == 0 {
			return b.downError(l), longerPause
		}
	}
	if x := b.tenants.all[l.Tenant]; x != nil && (t < x.until || x.prober != probe{}) {
		return fmt.Errorf("backend %s is paused for tenant %q", b.name, l.Tenant), max(x.until-t, askAgain)
	}
	if l.Begun.IsZero() && (p.waits || l.PutOff) { // one that was called had what others wait for
		return fmt.Errorf("backend %s did not admit it in time: its limit or rate was used up", b.name), firstPause
	}
	return nil, 0
}

func (b *Backend) downError(l *gate.Late) error {
	if b.state == Up {
		return fmt.Errorf("backend %s has a limit of 0", b.name)
	}
	if at := b.epoch.Add(b.answeredAt); b.answeredAt > 0 && !l.Failed.IsZero() && l.Failed.Before(at) && at.Before(l.Begun) {
		return fmt.Errorf("backend %s is %v: %s; %w", b.name, b.state, b.why, gate.ErrAnswered)
	}
	return fmt.Errorf("backend %s is %v: %s", b.name, b.state, b.why)
}

// Leave implements gate.Seat.
func (p *seat) Leave() {
	b := p.backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	b.drop(p, p.aside)
	p.part()
	if b.trying && b.prober.seat == p {
		b.trying = false
	}
	for _, x := range b.tenants.list {
		if x.prober.seat == p {
			x.prober = probe{}
		}
	}
	b.handOut(t, nil)
}
