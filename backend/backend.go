package backend

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// Backend is a service that operators call. It is safe for concurrent use.
type Backend struct {
	attached
	settings
	epoch   time.Time
	limiter *adaptive   // nil if the limit is not adaptive
	shared  *fleetShare // nil if the limit is not shared with other processes

	steering sync.Mutex // guards order
	order    gate.Order // the last one

	mu      sync.Mutex // guards the fields below, and fields of seats that name it; only engines.mu is taken while it is held
	limit   int
	used    int     // running calls and reserved permits
	waiting []*seat // seats short of permits; the seat that was not served for longest is first
	health
	rate     bucket // of cost
	callRate bucket // of calls
	tuner    tuner  // of rate
	retries  bucket
	tenants  tenants
	counts   Stats
	lines    []line // of the log, to be written without mu
}

// New returns a backend that is up. Log lines and errors contain its name. It panics if
// name is empty.
func New(name string, opts ...Option) *Backend {
	s := newSettings(name, opts)
	b := &Backend{settings: s, epoch: s.clock.Now(), limit: s.limit, rate: s.rate, callRate: s.callRate, tuner: s.tuner, tenants: newTenants(s.tenantRate, s.breaksTenants)}
	b.attached = gate.AttachedBy(protocol{b})
	b.calls = newWindow(s.window)
	if s.least > 0 {
		b.limiter = newAdaptive(s.least, s.limit)
		b.limit = s.least
	}
	if s.retryShare >= 0 {
		b.retries = wholeRetries
	}
	if s.keeper != nil {
		b.shared = newFleetShare(b)
	}
	return b
}

// The fixed part of a retry budget.
const (
	retriesPerSecond = 10
	retryBurst       = 100
)

// wholeRetries is the budget of a backend whose limit is not shared.
var wholeRetries = bucket{perNano: retriesPerSecond / float64(time.Second), burst: retryBurst, level: retryBurst}

// Hold holds the backend: no call starts until [Backend.Resume]. Running calls continue.
// The reason is in Stats and errors. With [Shared] it holds all processes, until a Resume
// in one of them, or until all have ended. The order is recorded within about a second,
// even if this process has no operators. If the engine does not answer for five seconds,
// the order lapses if the state of the fleet changes meanwhile. A process without
// operators tries for 50 s, and again when its next operator starts.
func (b *Backend) Hold(reason string) {
	t := b.now()
	b.mu.Lock()
	b.hold(nil, t, reason)
	b.proposeHealth(t, byOrder)
	b.unlock()
	if b.shared != nil {
		b.shared.order()
	}
}

// HoldTenant holds a tenant (asyncop.Tenant) until [Backend.ResumeTenant], as
// [Backend.Hold] does the backend. The reason is in errors. It panics if tenant is empty.
func (b *Backend) HoldTenant(tenant, reason string) {
	mustBeTenant("HoldTenant", tenant)
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	b.hold(b.tenants.find(tenant, t, true), t, reason)
}

func (b *Backend) hold(x *tenant, t time.Duration, reason string) {
	h := b.of(x)
	b.advance(x, t)
	if h.state == Up {
		b.noteTarget(x, t)
		h.noteTrouble(t, b.ramp)
	}
	if x == nil {
		b.takeBack(t)
	}
	b.enter(x, Held, t)
	h.why, h.trying = reason, false
	b.log(x, slog.LevelWarn, "backend: held")
}

// Resume makes a backend that is held or down try its service now: with a single call,
// then a ramp (law B4). If a call is trying it already, another one may. With [Shared]
// one process tries the service, after a call that is trying it already. Resume ends a
// hold of another process, even if this process has not read it yet. The order is
// recorded like a Hold.
func (b *Backend) Resume() {
	t := b.now()
	b.mu.Lock()
	isResumed := b.resume(nil, t)
	if !isResumed && b.shared != nil {
		b.shared.machine.Resume(b.shared.instant())
	}
	b.unlock()
	if b.shared != nil {
		b.shared.order()
	}
}

// ResumeTenant makes a tenant that is held or down try its service now, like
// [Backend.Resume]. It has no effect on a tenant that is up. It panics if tenant is
// empty.
func (b *Backend) ResumeTenant(tenant string) {
	mustBeTenant("ResumeTenant", tenant)
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	x := b.tenants.all[tenant]
	if x != nil {
		b.resume(x, t)
	}
}

// resume ends a hold or an outage of the service or of a tenant, and reports whether
// there was one.
func (b *Backend) resume(x *tenant, t time.Duration) bool {
	h := b.of(x)
	b.advance(x, t)
	switch h.state {
	case Held, Down:
		b.enter(x, Probing, t)
	case Probing:
	case Up, Ramping:
		return false
	}
	if x != nil && !b.breaksTenants { // the ends of its calls are not judged
		b.enter(x, Up, t)
		b.log(x, slog.LevelInfo, "backend: up")
		return true
	}
	h.trying, h.outage = false, t
	b.log(x, slog.LevelInfo, "backend: probing")
	if x == nil {
		b.proposeHealth(t, byOrder)
		if b.shared != nil && b.dryRun { // it does not probe, and other processes may
			b.enter(nil, Up, t)
			b.log(nil, slog.LevelInfo, "backend: up")
		}
	}
	b.handOut(t, nil)
	return true
}

func mustBeTenant(function, tenant string) {
	if tenant == "" {
		panic("backend: " + function + ": the tenant is empty")
	}
}

// SetLimit changes how many calls may run at a time; with 0, no call starts. Running
// calls continue. An adaptive limit adapts from n, within its bounds. With [Shared], n is
// the limit of all processes, and must be set in each. It panics if n is negative.
func (b *Backend) SetLimit(n int) {
	mustNotBeNegative("SetLimit", n)
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	if b.limiter != nil {
		n = b.limiter.set(n)
	}
	if b.shared != nil {
		b.shared.setLimit(n)
		return
	}
	b.bound(n)
	b.handOut(t, nil)
}

// bound changes the limit. It takes back permits that were reserved beyond it, first from
// the seats that were served last.
func (b *Backend) bound(n int) {
	b.limit = n
	for i := len(b.waiting) - 1; i >= 0 && b.used > n; i-- {
		p := b.waiting[i]
		b.drop(p, min(p.reserved, b.used-n))
	}
}

// Stats is a backend's state, and counts of its calls.
type Stats struct {
	Name             string
	State            State
	Reason           string    // why State is not Up
	Since            time.Time // when State began
	Until            time.Time // when Down ends or, in other states, the pause that the service has asked for
	Limit            int       // calls that may run; with Shared, this process's share; without a limit, the largest int
	InUse            int       // running calls; may exceed Limit after it was lowered
	Waiting          int       // operators that wait
	TenantsPaused    int       // tenants that wait for a time that the service has named, or for a try
	TenantsDown      int       // tenants that are down, probing or held
	Started          int64     // attempts
	Lost             int64     // lost attempts
	Throttled        int64     // attempts answered with a request for fewer calls
	RetriesRefused   int64     // by the retry budget
	RetriesLeft      int       // in the retry budget; without a budget, the largest int
	Trips            int64     // how often it went down by itself
	TenantTrips      int64     // how often tenants went down by themselves; 0 without TenantBreaker
	WouldHaveTripped int64     // with DryRun; also of tenants
}

// Stats returns the backend's state and counts.
func (b *Backend) Stats() Stats {
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	return b.stats(t)
}

func (b *Backend) stats(t time.Duration) Stats {
	b.advance(nil, t)
	s := b.counts
	s.Name = b.name
	s.State = b.state
	s.Reason = b.why
	s.Limit = b.limit
	s.Since, s.InUse = b.epoch.Add(b.since), b.used
	for _, p := range b.waiting {
		s.InUse -= p.reserved
	}
	s.Waiting, s.RetriesLeft = len(b.waiting), math.MaxInt
	if b.retryShare >= 0 {
		b.retries.fill(t)
		s.RetriesLeft = int(b.retries.level)
	}
	switch {
	case b.state == Down:
		s.Until = b.epoch.Add(b.until)
	case t < b.paused:
		s.Until = b.epoch.Add(b.paused)
		if s.Reason == "" {
			s.Reason = b.pausedBy
		}
	}
	for _, x := range b.tenants.list {
		if x.paused > t {
			s.TenantsPaused++
		}
	}
	for _, x := range b.tenants.limited {
		if x.state != Ramping && x.state != Up {
			s.TenantsDown++
		}
	}
	return s
}

type attached = gate.Attached // operators and workers find a backend's protocol by it

// protocol is the gate.Backend that operators and workers use.
type protocol struct{ *Backend }

// Report describes the backend to people.
func (p protocol) Report() gate.Report {
	b := p.Backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	s := b.stats(t)
	r := gate.Report{
		Name: s.Name, State: s.State.String(), Why: s.Reason, Since: s.Since, Until: s.Until, Limit: s.Limit, InUse: s.InUse, Waiting: s.Waiting,
	}
	if r.Limit == math.MaxInt {
		r.Limit = -1
	}
	if b.shared != nil {
		r.Fleet = b.shared.limit
	}
	if s.State == Down || s.State == Probing {
		r.Since = b.epoch.Add(b.troubled) // between probes the state changes often
	}
	for _, s := range b.spans {
		r.States = append(r.States, gate.StateSpan{State: s.state.String(), Since: b.epoch.Add(s.since)})
	}
	if len(r.States) == 0 {
		r.States = []gate.StateSpan{{State: Up.String(), Since: b.epoch}}
	}
	if b.hasRamp {
		r.Recovery = gate.Recovery{Begun: b.epoch.Add(b.rampAt), Outage: b.epoch.Add(b.troubled), Pace: b.recoveryPace(t)}
	}
	return r
}

// Steer carries out an order from a worker (delivery.Run). Several workers may pass on
// the same order.
func (p protocol) Steer(o gate.Order) {
	b := p.Backend
	b.steering.Lock()
	defer b.steering.Unlock()
	last := b.order
	if last.At.IsZero() {
		last.Limit = -1
	}
	if !o.At.After(last.At) {
		return
	}
	b.order = o
	switch {
	case o.Limit >= 0 && o.Limit != last.Limit:
		b.SetLimit(o.Limit)
	case o.Limit < 0 && last.Limit >= 0 && b.limiter == nil: // an adaptive limit keeps adapting
		b.SetLimit(b.settings.limit)
	}
	switch {
	case o.Held && !(last.Held && last.Why == o.Why):
		b.Hold(o.Why)
	case !o.Held && (last.Held || o.Resumes && o.At.After(b.epoch)):
		b.Resume()
	}
}

// Attach returns an operator's seat.
func (p protocol) Attach(s gate.Sleeper, c gate.Caller) gate.Seat {
	place := &seat{backend: p.Backend, sleeper: s, lent: c.Lent, around: c.Around}
	if p.shared == nil {
		return place
	}
	longest := p.shared.attach(c.Longest)
	return &sharedSeat{place, p.shared, longest}
}

func (b *Backend) now() time.Duration { return b.clock.Now().Sub(b.epoch) }

// unlock unlocks mu and writes the noted log lines.
func (b *Backend) unlock() {
	lines := b.lines
	b.lines = nil
	b.mu.Unlock()
	for _, l := range lines {
		l.write(b.logger)
	}
}

type line struct {
	level slog.Level
	text  string
	args  []any
}

// write writes the line. It recovers a panic of the user's handler, because the caller is
// an operator's loop.
func (l line) write(logger *slog.Logger) {
	defer func() { _ = recover() }()
	logger.Log(context.Background(), l.level, l.text, l.args...)
}

// handOut reserves free permits for sleeping seats, in turn (law B3), and wakes seats
// that would sleep too long. It reports whether asker, which is awake, is next.
func (b *Backend) handOut(t time.Duration, asker *seat) bool {
	if len(b.waiting) == 0 {
		return false
	}
	first := b.first(t, asker)
	for b.state != Probing && b.used < b.allowed(t) && first != nil && b.startWait(t, first.cost) == 0 {
		if first != asker && !first.sleeper.IsParked() {
			break // it is awake, and will ask
		}
		i := slices.Index(b.waiting, first)
		b.waiting = append(slices.Delete(b.waiting, i, i+1), first)
		if first == asker {
			return true
		}
		first.reserved++
		b.used++
		b.takeStart(t, first.cost)
		first.sleeper.WakeUp()
		first = b.first(t, asker)
	}
	if asker == nil {
		b.rouse(t, first)
	}
	return false
}

// first returns the next seat to serve, or nil: the first waiting seat that is asker,
// sleeps, or has just been woken. Seats awake for longer run user code, which may take
// long.
func (b *Backend) first(t time.Duration, asker *seat) *seat {
	for _, p := range b.waiting {
		switch {
		case p == asker:
			return p
		case !p.asleep || p.reserved >= p.wants:
			continue
		case p.sleeper.IsParked():
			return p
		case p.awake == 0:
			p.awake = max(1, t)
		}
		if t < p.awake+comes {
			return p
		}
	}
	return nil
}

// comes is how long a woken seat that has not asked keeps its turn.
const comes = 10 * time.Millisecond

// rouse wakes the seats that would sleep too long. first is served next.
func (b *Backend) rouse(t time.Duration, first *seat) {
	if b.state == Held || b.state == Up && b.used >= b.limit && t >= b.paused {
		return // a released permit wakes a seat
	}
	for _, p := range b.waiting {
		if p.asleep && p.reserved == 0 && p.wakes > t && later(t, p.mustSleep(t, first)) < p.wakes {
			p.wakes = t
			p.sleeper.WakeUp()
		}
	}
}

// later returns t + d, or the last possible instant.
func later(t, d time.Duration) time.Duration {
	if d > math.MaxInt64-t {
		return math.MaxInt64
	}
	return t + d
}

func (b *Backend) takeBack(t time.Duration) {
	b.fillRates(t)
	for _, p := range b.waiting {
		b.drop(p, p.reserved)
	}
}

// drop takes back the permits and the cost reserved for n calls of a seat.
func (b *Backend) drop(p *seat, n int) {
	b.used -= n
	b.giveStarts(n, p.cost)
	p.reserved -= n
}
