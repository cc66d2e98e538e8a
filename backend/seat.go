package backend

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// seat is an operator's seat. A refused seat sleeps until it is woken, or for the time
// that Wait returned. It has neither a goroutine nor a timer (law B2).
type seat struct {
	backend *Backend
	sleeper gate.Sleeper
	lent    int        // calls that run on the permit around the operator
	around  gate.Stamp // of that permit
	joined  bool       // owned by the loop: it is in waiting, as far as the loop knows

	// Guarded by Backend.mu.
	own      int           // calls with permits of its own
	onLent   int           // calls on the permit around the operator; at most lent
	reserved int           // reserved permits, with their part of the rates
	wants    int           // permits that may be reserved for it
	gave     bool          // it returned some in this round
	asleep   bool          // it sleeps, or was woken and has not asked
	waits    bool          // is in Backend.waiting
	cost     float64       // of the attempt that was refused last
	wakes    time.Duration // by itself, if it is asleep
	awake    time.Duration // when it was first found awake after a sleep, or 0
}

var _ gate.Seat = (*seat)(nil)

// Start implements gate.Seat.
func (p *seat) Start(now time.Time, a *gate.Request) gate.Answer {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	p.asleep = false
	var answer gate.Answer
	if b.state == Up && t >= b.paused && len(b.waiting) == 0 && b.used < b.limit && p.onLent >= p.lent && b.pay(t, a) {
		b.used++
		p.own++
		answer = b.begin(p, t, a, false)
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

// pay takes the attempt's part of the rates if state, rates and tenant allow it.
func (b *Backend) pay(t time.Duration, a *gate.Request) bool {
	var x *tenant
	if a.Tenant != "" && !b.tenants.isIdle() {
		x = b.tenants.find(a.Tenant, t, false)
		if x != nil && (x.state != Up || x.wait(t, a.Cost) > 0) {
			return false
		}
	}
	if b.rate.isSet() || b.callRate.isSet() {
		if b.startWait(t, a.Cost) > 0 {
			return false
		}
		b.takeStart(t, a.Cost)
	}
	if x != nil {
		b.beginOf(x, t, a.Cost)
	}
	return true
}

// beginOf counts a starting attempt of a tenant.
func (b *Backend) beginOf(x *tenant, t time.Duration, cost float64) {
	x.rate.take(cost)
	if x.state == Up && b.breaksTenants {
		x.pace.note(t)
		x.onset.start(b.window)
	}
	x.takeOfRamp(t)
}

// begin counts a starting attempt. isLent reports that it runs on the permit around its
// operator.
func (b *Backend) begin(p *seat, t time.Duration, a *gate.Request, isLent bool) gate.Answer {
	b.counts.Started++
	if b.state == Up {
		b.pace.note(t)
		b.onset.start(b.window)
	}
	if !a.Retry && b.retries.isSet() {
		b.retries.give(b.retryShare)
	}
	if b.shared != nil {
		return gate.Answer{Stamp: b.shared.permits.grant(p, isLent)}
	}
	if b.limiter != nil && b.limiter.beginSample(t) {
		return gate.Answer{Stamp: gate.StampOf(t)}
	}
	return gate.Answer{}
}

// ask starts an attempt if state, pause, tenant, limit, rates, ramp and the order of the
// seats allow it. A refused attempt takes no permit and no cost.
func (p *seat) ask(t time.Duration, a *gate.Request) gate.Answer {
	b := p.backend
	b.advance(nil, t)
	switch b.state {
	case Held:
		return p.refuse(a, gate.Never)
	case Down:
		return p.refuse(a, b.until-t)
	case Up, Probing, Ramping:
	}
	if t < b.paused {
		return p.refuse(a, b.paused-t)
	}
	if b.state == Probing {
		if wait := b.probes(t); wait > 0 {
			return p.refuse(a, wait)
		}
		if !b.hasProbe() {
			return p.refuse(a, gate.Never)
		}
		if wait := p.mayProbe(&b.health, t, a); wait > 0 {
			return gate.Answer{Wait: wait, OthersMayStart: true}
		}
	}
	var x *tenant
	if a.Tenant != "" && !b.tenants.isIdle() {
		x = b.tenants.find(a.Tenant, t, false)
		if x != nil {
			if wait, isDown := p.askTenant(x, t, a); wait > 0 {
				return gate.Answer{Wait: wait, OthersMayStart: true, TenantIsDown: isDown}
			}
		}
	}
	isLent := p.onLent < p.lent
	if !p.take(t, a) {
		return p.refuse(a, gate.Never)
	}
	if b.state == Probing {
		b.probe(p, a.Element, t)
	}
	if x != nil {
		b.beginOf(x, t, a.Cost)
		if x.state == Probing {
			x.probe(p, a.Element, t)
		}
	}
	answer := b.begin(p, t, a, isLent)
	if b.state == Probing && b.shared != nil {
		b.shared.permits.noteProbe(answer.Stamp)
	}
	return answer
}

// probe notes that an element's call tries the service.
func (h *health) probe(p *seat, element uint64, t time.Duration) {
	h.trying = true
	h.tried = t
	h.prober = probe{p, element}
}

// askTenant returns the time until a call of a tenant may start, or 0. isDown reports
// that the tenant is down, held or paused for long, or that another call tries its
// service.
func (p *seat) askTenant(x *tenant, t time.Duration, a *gate.Request) (wait time.Duration, isDown bool) {
	b := p.backend
	b.advance(x, t)
	switch x.state {
	case Held:
		return heldAgain, true
	case Down:
		return x.until - t, true
	case Probing:
		if wait := x.probes(t); wait > 0 {
			return min(wait, firstPause), true // the probe may end earlier
		}
		if wait := p.mayProbe(&x.health, t, a); wait > 0 {
			return wait, false
		}
	case Up, Ramping:
	}
	return max(x.wait(t, a.Cost), x.rampWait(t)), b.isPausedLong(x, t)
}

// isPausedLong reports whether a tenant with a breaker is paused for so long that its
// messages leave their slots.
func (b *Backend) isPausedLong(x *tenant, t time.Duration) bool {
	return b.breaksTenants && x.paused-t >= longPause
}

// longPause is the shortest rest of such a pause.
const longPause = time.Second

// heldAgain is how long an element of a held tenant waits before it asks again.
const heldAgain = time.Second

// mayProbe returns the time until an element may try the service of h, or 0. Elements
// that have met the outage wait for others, and the last prober waits longest (law B4).
func (p *seat) mayProbe(h *health, t time.Duration, a *gate.Request) time.Duration {
	wait := time.Duration(min(a.Outages, 3)) * time.Second
	if a.Hurried { // a probe may take long, and an element whose call is cut off has failed
		wait += time.Second
	}
	if h.prober == (probe{p, a.Element}) {
		wait += time.Second
	}
	return max(0, h.since+wait-t)
}

func (p *seat) take(t time.Duration, a *gate.Request) bool {
	b := p.backend
	lent := p.onLent < p.lent
	had := p.reserved > 0
	isFirst := lent || had || b.state == Probing
	if had { // the call may cost another amount
		b.drop(p, 1)
	}
	if !lent && b.used >= b.allowed(t) || b.startWait(t, a.Cost) > 0 {
		p.gave = p.gave || had
		return false
	}
	if !isFirst && len(b.waiting) > 0 {
		p.cost = a.Cost
		p.join()
		if !b.handOut(t, p) {
			return false
		}
	}
	if lent {
		p.gave = p.gave || had
		p.onLent++
	} else {
		b.used++
		p.own++
	}
	b.takeStart(t, a.Cost)
	return true
}

func (p *seat) refuse(a *gate.Request, wait time.Duration) gate.Answer {
	p.gave = p.gave || p.reserved > 0
	p.backend.drop(p, p.reserved) // at the reserved cost
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
	if stamp != 0 && b.limiter != nil && (b.state == Up || b.state == Ramping) {
		took := stamp.Since(t)
		if t-took >= b.begun {
			b.bound(b.limiter.sample(t, took, b.used))
		}
	}
	p.free(t, p.own == 0)
	if b.lines != nil {
		b.unlock()
		return
	}
	b.mu.Unlock()
}

// free frees a permit of the seat, or the lent one.
func (p *seat) free(t time.Duration, isLent bool) {
	b := p.backend
	switch {
	case !isLent:
		p.own--
		b.used--
		if len(b.waiting) > 0 {
			b.freed(t)
		}
	default:
		p.onLent--
		if p.waits {
			p.sleeper.WakeUp() // the lent permit is free again
		}
	}
}

func (b *Backend) freed(t time.Duration) {
	if t == 0 {
		t = b.now()
	}
	b.handOut(t, nil)
}

// AttemptEnded implements gate.Seat.
func (p *seat) AttemptEnded(now time.Time, o *gate.Evidence) gate.Effect {
	b := p.backend
	t, begun := now.Sub(b.epoch), o.Begun.Sub(b.epoch)
	s, demanded := answered, time.Duration(0)
	if !o.Ignored {
		s, demanded = signalOf(o)
	}
	cost := settledCost(o, s)
	shared := o.Borrowed && s == lost && !b.dryRun
	// The element is throttled even if another element made the call.
	isThrottled := s == throttled
	if o.Borrowed { // the calling element reports it
		o.Ignored = true
		s = answered
		demanded = 0
	}
	text := ""
	if s == lost || o.Call != nil { // without the lock, because an error is user code
		text = describe(o)
	}
	b.mu.Lock()
	defer b.unlock()
	b.settle(t, o, cost, s == throttled)
	x := b.judged(o.Tenant, t)
	h := b.of(x)
	// If the service answers other calls, this call was cut off because its element had
	// waited too long. On the ramp the elements that waited longest are first.
	if o.Cut && s == lost && (h.state == Ramping || h.answeredAt > begun) {
		o.Ignored = true
		s = answered
		demanded = 0
	}
	inOutage := h.state != Up || h.calls.row > 0 || begun < h.begun
	effect := effectOf(isThrottled, (shared || s == lost && o.Call != nil && !b.dryRun) && inOutage)
	if o.Call != nil {
		s, demanded = merge(o.Call, o, s, demanded)
		if o.Call.Left > 0 {
			return effect
		}
		*o.Call = gate.Call{Element: o.Call.Element}
	}
	if s != lost && !o.Ignored {
		b.answeredAt = max(b.answeredAt, t)
		h.answeredAt = max(h.answeredAt, t)
		if b.limiter != nil && begun >= b.begun {
			b.limiter.answered()
		}
	}
	if b.state == Up && h.state == Up && s == answered {
		if !o.Ignored {
			b.noteCall(x, false)
		}
		return effect
	}
	return max(effect, p.weigh(x, t, o, s, demanded, text))
}

// judged returns the tenant whose state depends on the calls of a tenant, or nil for the
// backend.
func (b *Backend) judged(name string, t time.Duration) *tenant {
	if !b.breaksTenants || name == "" {
		return nil
	}
	return b.tenants.find(name, t, true)
}

// noteCall notes in the window of its tenant or of the backend whether a call was lost.
func (b *Backend) noteCall(x *tenant, isLost bool) {
	if x != nil {
		x.calls.noteOfMany(isLost, b.window)
		return
	}
	b.calls.note(isLost)
}

// settledCost returns an attempt's real cost: without a report the cost taken at the
// start, or 0 if the call was not sent or was refused.
func settledCost(o *gate.Evidence, s signal) float64 {
	switch {
	case o.IsReported:
		return o.Reported
	case o.Ignored || o.Borrowed || s == throttled:
		return 0
	case s == lost && wasNotSent(o):
		return 0
	}
	return o.Cost
}

// settle replaces an attempt's cost by its real cost.
func (b *Backend) settle(t time.Duration, o *gate.Evidence, cost float64, isThrottled bool) {
	estimate := o.Cost
	o.Cost = cost
	if cost == estimate {
		return
	}
	b.fillRates(t)
	b.rate.settle(estimate, cost, isThrottled)
	x := b.tenants.all[o.Tenant]
	if x != nil {
		x.rate.fill(t)
		x.rate.settle(estimate, cost, isThrottled)
	}
	if cost < estimate {
		b.handOut(t, nil)
	}
}

// Refund implements gate.Seat.
func (p *seat) Refund(now time.Time, a *gate.Request) {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.fillRates(t)
	b.rate.give(a.Cost)
	if !a.Joined {
		b.callRate.give(1)
		b.giveToRamp(1)
	}
	x := b.tenants.all[a.Tenant]
	if x != nil {
		x.rate.fill(t)
		x.rate.give(a.Cost)
		x.giveToRamp(1)
	}
	b.handOut(t, nil)
}

func effectOf(isThrottled, outage bool) gate.Effect {
	switch {
	case isThrottled:
		return gate.Throttled
	case outage:
		return gate.Outage
	}
	return gate.Counts
}

// merge adds the end of one element's attempt to the end of a call for several. After the
// last, o and the results are the end of the call.
func merge(c *gate.Call, o *gate.Evidence, s signal, demanded time.Duration) (signal, time.Duration) {
	c.Left--
	c.Answered = c.Answered || !o.Ignored && s == answered
	c.Throttled = c.Throttled || s == throttled
	c.Lost = c.Lost || s == lost
	c.Demanded = max(c.Demanded, demanded)
	o.Element, o.Ignored = c.Element, !c.Answered && !c.Throttled && !c.Lost
	switch {
	case c.Throttled:
		return throttled, c.Demanded
	case c.Answered || !c.Lost:
		return answered, 0
	}
	return lost, c.Demanded
}

// Join implements gate.Seat.
func (p *seat) Join(a *gate.Request) {
	b := p.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate.take(a.Cost)
	if !a.Retry {
		b.retries.give(b.retryShare)
	}
}

// weigh updates the backend, and the tenant x if it is not nil, after the end of an
// attempt that may change a state. text describes a loss. Losses of x are evidence about
// x alone: for the backend, its calls count as answered.
func (p *seat) weigh(x *tenant, t time.Duration, o *gate.Evidence, s signal, demanded time.Duration, text string) gate.Effect {
	b := p.backend
	begun := o.Begun.Sub(b.epoch)
	b.advance(nil, t)
	if x != nil {
		b.advance(x, t)
	}
	if o.Ignored {
		p.endProbe(&b.health, t, begun, o)
		if x != nil {
			p.endProbe(&x.health, t, begun, o)
		}
		return gate.Counts
	}
	switch s {
	case throttled:
		b.throttle(t, begun, o.Tenant, demanded)
	case lost:
		b.lose(x, t, begun, o.Tenant, demanded)
	case answered:
	}
	if x != nil && b.state == Probing {
		b.judge(nil, t, begun, answered, 0, "")
	}
	return b.judge(x, t, begun, s, demanded, text)
}

// endProbe lets another call try the service of h if the call of o did so without
// evidence.
func (p *seat) endProbe(h *health, t, begun time.Duration, o *gate.Evidence) {
	isProbe := h.state == Probing && begun >= h.since // perhaps not the last probe
	if isProbe && h.prober == (probe{p, o.Element}) {
		h.trying = false
		p.backend.handOut(t, nil)
	}
}

// judge changes the state of the service, or of a tenant if x is not nil, after the end
// of a call that began at begun, and returns the effect on its element.
func (b *Backend) judge(x *tenant, t, begun time.Duration, s signal, demanded time.Duration, text string) gate.Effect {
	h := b.of(x)
	isProbe := h.state == Probing && begun >= h.since // perhaps not the last probe
	if s == throttled {
		if isProbe { // the service works
			b.startRamp(x, t)
		}
		return gate.Throttled
	}
	switch {
	case h.state == Held || h.state == Down:
	case isProbe && s == lost:
		b.goDown(x, t, demanded, "a probe was lost: "+text)
		if b.dryRun { // else it would stay in this state
			b.startRamp(x, t)
		}
	case isProbe:
		b.startRamp(x, t)
	case h.state == Probing || begun < h.begun:
	default:
		b.noteCall(x, s == lost)
		if s != lost {
			break
		}
		if h.state == Up {
			h.onset.lose(t, begun)
		}
		if calls := b.failing(x); calls != "" {
			b.goDown(x, t, 0, calls+" were lost, the last one: "+text)
		}
	}
	return effectOf(false, s == lost && !b.dryRun && (h.state != Up || h.calls.row > 1 || begun < h.begun))
}

// throttle obeys an answer that asks for fewer calls (law B6): it delays the call's
// tenant or, without a tenant, all calls. It is not evidence of an outage.
func (b *Backend) throttle(t, begun time.Duration, name string, demanded time.Duration) {
	b.counts.Throttled++
	if name == "" {
		b.tuner.lower(&b.rate, t, begun)
	}
	isLate := begun < b.paused // the call began before an earlier answer's pause
	if name != "" {
		x := b.tenants.all[name]
		isLate = x != nil && begun < x.paused
	}
	switch {
	case demanded > 0:
		b.delay(t, name, demanded)
	case !isLate:
		b.delay(t, name, shortPause)
	}
}

// lose counts a lost call, and obeys its demand. x is the tenant that is judged by it, or
// nil: an adaptive limit depends on the whole service.
func (b *Backend) lose(x *tenant, t, begun time.Duration, name string, demanded time.Duration) {
	b.counts.Lost++
	if x == nil && b.limiter != nil && begun >= b.begun {
		b.bound(b.limiter.lost(t))
	}
	if demanded > 0 {
		b.delay(t, name, demanded)
	}
}

// delay pauses a tenant, or all calls if name is empty. DryRun prevents it.
func (b *Backend) delay(t time.Duration, name string, demanded time.Duration) {
	switch {
	case b.dryRun:
	case name == "":
		b.obey(t, demanded)
	default:
		x := b.tenants.find(name, t, true)
		x.obey(t, min(demanded, b.longest))
		if b.breaksTenants {
			b.tenants.note(x, t)
		}
	}
}

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
	b.retries.fill(now.Sub(b.epoch))
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
	b.advance(nil, t)
	p.asleep = p.sleeper.IsParked()
	p.awake = 0
	p.wakes = 0
	p.wants = wants
	b.handOut(t, nil)
	wait := p.mustSleep(t, b.first(t, p))
	p.wakes = later(t, wait)
	return wait
}

// mustSleep returns how long the seat has to sleep, as far as is known. first is the next
// seat.
func (p *seat) mustSleep(t time.Duration, first *seat) time.Duration {
	b := p.backend
	lent := p.onLent < p.lent
	switch b.state {
	case Held:
		return gate.Never
	case Down:
		return b.until - t
	case Up, Probing, Ramping:
	}
	if t < b.paused {
		return b.paused - t
	}
	wait := b.startWait(t, p.cost)
	switch b.state {
	case Probing:
		if !lent && b.used >= b.limit || !b.hasProbe() {
			return gate.Never
		}
		return max(wait, b.probes(t))
	case Up, Ramping, Down, Held:
	}
	switch {
	case p.reserved > 0:
		return 0
	case lent:
		return wait
	case b.used >= b.limit:
		return gate.Never
	case first != nil && first != p:
		wait = max(wait, b.startWait(t, first.cost)+b.rate.takes(p.cost))
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
	if p.reserved > 0 || p.gave || !isShort { // otherwise other seats are not affected
		b.drop(p, p.reserved)
		p.gave = false
		if !isShort {
			p.part()
		}
		b.handOut(now.Sub(b.epoch), nil)
	}
}

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
	b.advance(nil, t)
	switch b.state {
	case Down:
		return b.downError(l), b.until - t
	case Probing:
		return b.downError(l), firstPause
	case Held:
		return b.downError(l), longerPause
	case Ramping: // the element waited for the end of the outage, and had no time left
		return b.downError(l), max(b.since+b.rampOver-t, askAgain)
	case Up:
		if b.limit == 0 {
			return b.downError(l), longerPause
		}
	}
	if t < b.paused {
		return fmt.Errorf("backend %s is paused: %s", b.name, b.pausedBy), b.paused - t
	}
	x := b.tenants.all[l.Tenant]
	if x != nil {
		err, wait := b.whyTenantWaits(x, t, l)
		if err != nil {
			return err, wait
		}
	}
	if l.Throttled {
		return fmt.Errorf("backend %s: the service asked for fewer calls", b.name), askAgain
	}
	if l.Begun.IsZero() && (p.waits || l.PutOff) { // an element that was called had a permit
		return fmt.Errorf("backend %s did not admit it in time: its limit or rate was used up", b.name), firstPause
	}
	return nil, 0
}

// whyTenantWaits returns why an element of a tenant could not start, and for how long.
// err is nil if the tenant's state is not the reason.
func (b *Backend) whyTenantWaits(x *tenant, t time.Duration, l *gate.Late) (err error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	b.advance(x, t)
	err = tenantDownError{b.stateError(fmt.Sprintf("backend %s: tenant %q is %v", b.name, x.name, x.state), &x.health, l)}
	switch x.state {
	case Down:
		return err, x.until - t
	case Probing:
		return err, firstPause
	case Held:
		return err, heldAgain
	case Ramping:
		return err, max(x.since+x.rampOver-t, askAgain)
	case Up:
	}
	if t < x.paused {
		return tenantDownError{fmt.Errorf("backend %s is paused for tenant %q", b.name, x.name)}, x.paused - t
	}
	return nil, 0
}

// tenantDownError also matches gate.ErrTenantDown.
type tenantDownError struct{ error }

func (e tenantDownError) Unwrap() []error { return []error{e.error, gate.ErrTenantDown} }

func (b *Backend) downError(l *gate.Late) error {
	if b.state == Up {
		return fmt.Errorf("backend %s has a limit of 0", b.name)
	}
	return b.stateError(fmt.Sprintf("backend %s is %v", b.name, b.state), &b.health, l)
}

func (b *Backend) stateError(text string, h *health, l *gate.Late) error {
	if at := b.epoch.Add(h.answeredAt); h.answeredAt > 0 && !l.Failed.IsZero() && l.Failed.Before(at) && at.Before(l.Begun) {
		return fmt.Errorf("%s: %s; %w", text, h.why, gate.ErrAnswered)
	}
	return fmt.Errorf("%s: %s", text, h.why)
}

// IsDown implements gate.Seat.
func (p *seat) IsDown(now time.Time, tenant string) bool {
	b := p.backend
	t := now.Sub(b.epoch)
	b.mu.Lock()
	defer b.unlock()
	b.advance(nil, t)
	x := b.tenants.limited[tenant]
	if x != nil {
		b.advance(x, t)
		return x.state != Up || b.state != Up
	}
	return b.state != Up
}

// IsTenantPaused implements gate.Seat.
func (p *seat) IsTenantPaused(now time.Time, tenant string) bool {
	b := p.backend
	b.mu.Lock()
	defer b.unlock()
	x := b.tenants.limited[tenant]
	return x != nil && b.isPausedLong(x, now.Sub(b.epoch))
}

// Leave implements gate.Seat.
func (p *seat) Leave() {
	b := p.backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	b.drop(p, p.reserved)
	p.part()
	if b.trying && b.prober.seat == p {
		b.trying = false
	}
	b.tenants.leave(p)
	b.handOut(t, nil)
}
