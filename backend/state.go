package backend

import (
	"fmt"
	"log/slog"
	"math"
	"time"
)

// State is a backend's state: whether calls start.
type State uint8

// The states. The package doc shows the transitions.
const (
	Up      State = iota // calls start, within limit and rate
	Down                 // no call starts until a given time
	Probing              // a single call tries the service
	Ramping              // the load grows back
	Held                 // no call starts until Resume is called
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Up:
		return "up"
	case Down:
		return "down"
	case Probing:
		return "probing"
	case Ramping:
		return "ramping"
	case Held:
		return "held"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// health is the state of a service or a tenant. Guarded by Backend.mu.
type health struct {
	state  State
	why    string        // the reason for a state other than Up
	since  time.Duration // when the state began
	until  time.Duration // when Down ends, or would end in a dry run
	outage time.Duration // when the outage began, or Resume was called in it
	begun  time.Duration // calls that began earlier are no evidence
	prober probe         // the probe under way, or the last
	trying bool          // a probe is under way
	tried  time.Duration // when it began

	// A demanded pause (law B6). It does not change the state.
	paused   time.Duration // no call starts before
	pausedBy string        // the reason

	answeredAt time.Duration // the last answer, or 0

	spans []span // the last states, the oldest first; empty before the first transition

	// The ramp takes [Ramp], but at most half as long as the trouble before it. So a
	// short overload costs little, and repeated outages get the whole ramp.
	troubled time.Duration // start of the outage, or of the first of several
	rampOver time.Duration // how long this ramp takes

	hasRamp  bool          // there was a ramp
	rampAt   time.Duration // when the last began
	target   float64       // calls a second at its end, as before the outage; with Shared, of all processes
	started  float64       // its calls that have started, or may start at once
	part     float64       // this process's part of the ramp: 1 without Shared
	partAt   time.Duration // when the part changed last
	partFrom float64       // calls that the ramp allowed this process before

	pace  pace   // of the starts while the backend is up
	calls window // the last calls by their ends; a tenant's only since a loss
	onset onset  // the calls that started after a loss
}

// span is a past state. Down and Probing are one span.
type span struct {
	state State
	since time.Duration
}

const mostSpans = 32

func (h *health) noteSpan(s State, t time.Duration) {
	if len(h.spans) == 0 {
		h.spans = append(h.spans, span{state: Up})
	}
	last := h.spans[len(h.spans)-1].state
	isOutage := s == Down || s == Probing
	wasOutage := last == Down || last == Probing
	if s == last || isOutage && wasOutage {
		return
	}
	if len(h.spans) == mostSpans {
		h.spans = append(h.spans[:0], h.spans[1:]...)
	}
	h.spans = append(h.spans, span{state: s, since: t})
}

// probe is the element of a seat that tries the service.
type probe struct {
	seat    *seat
	element uint64
}

// of returns a tenant's health, or the service's if x is nil.
func (b *Backend) of(x *tenant) *health {
	if x == nil {
		return &b.health
	}
	return &x.health
}

// advance makes the transitions that depend only on time.
func (b *Backend) advance(x *tenant, t time.Duration) {
	h := b.of(x)
	switch {
	case h.state == Down && t >= h.until:
		b.enter(x, Probing, h.until)
		h.trying = false
	case h.state == Ramping && t-h.since >= h.rampOver:
		b.enter(x, Up, t)
		h.pace.restart(t)
		b.log(x, slog.LevelInfo, "backend: up")
		b.handOut(t, nil)
	}
	if x != nil && x.isAbandoned(t) {
		b.enter(x, Up, t)
		h.pace.restart(t)
		b.log(x, slog.LevelInfo, "backend: up, because the tenant did not call for long")
	}
}

func (b *Backend) enter(x *tenant, s State, t time.Duration) {
	h := b.of(x)
	h.state, h.since = s, t
	if s == Up {
		h.why = ""
	}
	if x == nil {
		b.noteSpan(s, t)
	} else {
		b.tenants.note(x, t)
	}
}

// obey pauses all calls for a demanded delay (law B6). Then calls start at the same rate
// from an empty bucket, without a burst.
func (b *Backend) obey(t, demanded time.Duration) {
	until := t + min(demanded, b.longest)
	if until <= b.paused {
		return
	}
	b.pausedBy = "the service asks to wait " + demanded.String()
	if t >= b.paused && until-t >= logsPause {
		b.logBecause(nil, b.pausedBy, slog.LevelInfo, "backend: paused", slog.Duration("for", until-t))
	}
	b.pauseUntil(t, until)
	if b.shared != nil && until-t >= logsPause { // other processes would read a shorter one too late
		b.shared.proposePause()
	}
}

// pauseUntil makes all calls wait until a time, as obey does.
func (b *Backend) pauseUntil(t, until time.Duration) {
	b.paused = until
	b.takeBack(t)
	b.rate.empty(until)
	b.callRate.empty(until)
	if b.state == Down {
		b.until = max(b.until, until)
	}
	b.rouse(t, nil) // the seats' waits have changed
}

const (
	logsPause  = time.Second            // shortest pause that is logged, and passed on to a fleet
	shortPause = 100 * time.Millisecond // after a throttle without a delay
)

// goDown takes the service or a tenant down: for the demanded delay d or, if d is 0, for
// a pause that grows with the outage. A relapse begins with the shortest pause, so that
// short outages do not add up to a long one (law B4).
func (b *Backend) goDown(x *tenant, t, d time.Duration, why string) {
	h := b.of(x)
	if b.dryRun {
		b.wouldGoDown(x, t, d, why)
		return
	}
	wasUp := h.state == Up || h.state == Ramping
	if wasUp {
		h.outage = t
		h.noteTrouble(t, b.ramp)
	}
	if d == 0 {
		d = min(max(firstPause, (t-h.outage)/pauseShare), longerPause)
	}
	if h.state == Up {
		b.noteTarget(x, t)
	}
	if x == nil {
		b.takeBack(t)
	}
	b.enter(x, Down, t)
	h.until = max(t+min(d, b.longest), h.paused)
	h.why, h.trying = why, false
	h.resetEvidence()
	if x == nil {
		b.proposeHealth(t, byEvidence)
		b.rouse(t, nil) // the seats' waits have changed
	}
	if !wasUp {
		return
	}
	if x == nil {
		b.counts.Trips++
	} else {
		b.counts.TenantTrips++
	}
	b.log(x, slog.LevelWarn, "backend: down", slog.Duration("for", h.until-t))
}

// noteTrouble notes that the service or tenant goes down or is held. An outage within the
// time ramp after the last ramp's beginning is the same trouble.
func (h *health) noteTrouble(t, ramp time.Duration) {
	isFirst := h.begun == 0
	if isFirst || t-h.begun >= ramp {
		h.troubled = t
	}
}

// noteTarget makes the present rate the next ramp's final rate.
func (b *Backend) noteTarget(x *tenant, t time.Duration) {
	h := b.of(x)
	pace := h.pace.perSecond(t)
	if x == nil && b.shared != nil {
		pace += b.shared.machine.OthersPace()
	}
	h.target = max(leastTarget, pace)
}

// wouldGoDown notes when the service or tenant would go down without DryRun.
func (b *Backend) wouldGoDown(x *tenant, t, d time.Duration, why string) {
	h := b.of(x)
	h.resetEvidence()
	isDown := t < h.until
	if d == 0 {
		d = firstPause
	}
	h.until = max(h.until, t+min(d, b.longest))
	if isDown {
		return
	}
	b.counts.WouldHaveTripped++
	b.logBecause(x, why, slog.LevelWarn, "backend: would be down without DryRun")
}

// startRamp begins the ramp after a successful probe, and after a delay that its answer
// demands.
func (b *Backend) startRamp(x *tenant, t time.Duration) {
	h := b.of(x)
	if x == nil {
		b.takeBack(t)
	}
	b.enter(x, Ramping, max(t, h.paused))
	h.begun, h.trying = t, false
	h.rampOver = min(b.ramp, max(shortestRamp, (t-h.troubled)/rampShare))
	h.target = max(leastTarget, h.target)
	b.beginRamp(x, h.since)
	h.resetEvidence()
	if x == nil {
		b.rate.empty(t)
		b.callRate.empty(t)
	}
	// h.why is the outage's reason, not the ramp's.
	b.logBecause(x, "", slog.LevelInfo, "backend: ramping: its service answers again", slog.Duration("over", h.rampOver))
	if x == nil {
		b.proposeHealth(t, byEvidence)
	}
	b.handOut(t, nil)
}

// beginRamp begins the use of a ramp at a time. Its part before that is lost.
func (b *Backend) beginRamp(x *tenant, t time.Duration) {
	h := b.of(x)
	h.hasRamp, h.rampAt = true, t
	h.started = 0
	h.partFrom = 0
	h.partAt = t
	h.part = 1
	if x == nil && b.shared != nil {
		h.part = b.shared.part(b.limit)
	}
}

// setPart changes this process's part of the ramp. It had the earlier part until a time
// that is at most t.
func (b *Backend) setPart(t, until time.Duration, part float64) {
	if b.state == Ramping {
		b.partFrom = b.due(until)
		b.partAt = max(t, b.partAt)
	}
	b.part = part
}

// recoveryPace returns how many calls may start in a second, on the ramp or after it: at
// least 1. With Shared it is for all processes.
func (h *health) recoveryPace(t time.Duration) float64 {
	switch h.state {
	case Ramping:
		return max(1, h.target*min(1, (t-h.since).Seconds()/h.rampOver.Seconds()))
	case Up:
		return max(1, h.target)
	case Down, Probing, Held:
	}
	return 0
}

const (
	rampShare    = 2 // a ramp takes at most half as long as the trouble before it
	shortestRamp = 100 * time.Millisecond
)

// leastTarget is the least final rate, in calls a second.
const leastTarget = 16

// due returns how many calls the ramp allows until t. Their rate grows with the time, so
// their number grows with its square.
func (h *health) due(t time.Duration) float64 {
	x := max(0, t-h.since).Seconds()
	from := max(0, h.partAt-h.since).Seconds()
	return h.partFrom + h.part*h.target*max(0, x*x-from*from)/(2*h.rampOver.Seconds())
}

func (h *health) rampWait(t time.Duration) time.Duration {
	if h.state != Ramping || h.started <= h.due(t)+rounding {
		return 0
	}
	ends := h.since + h.rampOver
	if h.part <= 0 {
		return max(1, ends-t)
	}
	from := max(0, h.partAt-h.since).Seconds()
	x := math.Sqrt(from*from + 2*h.rampOver.Seconds()*(h.started-h.partFrom)/(h.target*h.part))
	if x >= h.rampOver.Seconds() {
		return max(1, ends-t)
	}
	next := h.since + time.Duration(math.Ceil(x*float64(time.Second)))
	return max(1, next-t)
}

// takeOfRamp takes a call from the ramp. An unused ramp saves up little.
func (h *health) takeOfRamp(t time.Duration) {
	if h.state == Ramping {
		saved := max(1, h.target*h.part*spare)
		h.started = max(h.started, h.due(t)-saved) + 1
	}
}

func (h *health) giveToRamp(n int) {
	if h.state == Ramping {
		h.started = max(0, h.started-float64(n))
	}
}

// startWait returns the time until rates and ramp allow a call of this cost, or 0.
func (b *Backend) startWait(t time.Duration, cost float64) time.Duration {
	b.fillRates(t)
	return max(b.rate.wait(cost), b.callRate.wait(1), b.rampWait(t))
}

func (b *Backend) fillRates(t time.Duration) {
	b.tuner.grow(&b.rate, t)
	b.rate.fill(t)
	b.callRate.fill(t)
}

func (b *Backend) takeStart(t time.Duration, cost float64) {
	b.rate.take(cost)
	b.callRate.take(1)
	b.takeOfRamp(t)
}

// giveStarts is the reverse of takeStart for n calls.
func (b *Backend) giveStarts(n int, cost float64) {
	b.rate.give(float64(n) * cost)
	b.callRate.give(float64(n))
	b.giveToRamp(n)
}

func (b *Backend) allowed(t time.Duration) int {
	if t < b.paused {
		return 0
	}
	switch b.state {
	case Up, Ramping:
		return b.limit
	case Probing:
		if b.probes(t) > 0 || !b.hasProbe() {
			return 0
		}
		return b.limit
	case Down, Held:
	}
	return 0
}

// hasProbe reports whether this process may probe the service. With Shared only one may.
func (b *Backend) hasProbe() bool { return b.shared == nil || b.shared.mayProbe() }

// probes returns how long the running probe keeps other calls away: 0 without a probe, or
// if it takes too long.
func (h *health) probes(t time.Duration) time.Duration {
	if !h.trying {
		return 0
	}
	return max(0, h.tried+longerPause-t)
}

func (h *health) resetEvidence() {
	h.calls.reset()
	h.onset = onset{}
}

// failing describes lost calls if they were too many, else "". A tenant's running calls
// are not counted, so five losses in a row are too many.
func (b *Backend) failing(x *tenant) string {
	h := b.of(x)
	w, o := &h.calls, &h.onset
	tooMany := b.lossShare * float64(b.window)
	row := fewLosses
	if x == nil {
		row = max(fewLosses, b.used)
	}
	switch {
	case h.state == Ramping:
		if w.losses >= relapse && float64(w.losses) > b.lossShare*float64(w.heard) {
			return w.String()
		}
	case float64(w.losses) > tooMany:
		return w.String()
	case w.row >= row:
		return fmt.Sprintf("the last %d calls in a row", w.row)
	case o.isOn && float64(o.lost) > tooMany:
		return fmt.Sprintf("%d of %d calls that started after a loss", o.lost, o.started)
	}
	return ""
}

const (
	relapse   = 3 // losses at least
	fewLosses = 5 // in a row at least
)

// log notes a line about the service or a tenant, with its state's reason, to be written
// without the lock.
func (b *Backend) log(x *tenant, level slog.Level, text string, more ...any) {
	b.logBecause(x, b.of(x).why, level, text, more...)
}

func (b *Backend) logBecause(x *tenant, why string, level slog.Level, text string, more ...any) {
	args := []any{slog.String("backend", b.name)}
	if x != nil {
		args = append(args, slog.String("tenant", x.name))
	}
	args = append(args, more...)
	if why != "" {
		args = append(args, slog.String("reason", why))
	}
	b.lines = append(b.lines, line{level, text, args})
}
