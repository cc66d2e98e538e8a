package backend

import (
	"fmt"
	"log/slog"
	"math"
	"time"
)

// State is the state of a backend: whether calls start.
type State uint8

// The states. The package documentation has a diagram of the transitions.
const (
	Up      State = iota // calls start, within limit and rate
	Down                 // no call starts until a given time
	Probing              // a single call tries the service
	Ramping              // the load grows back
	Held                 // no call starts until Resume is called
)

// String returns the name of the state.
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

// health is the state of a backend, with its history. Guarded by Backend.mu.
type health struct {
	state  State
	why    string        // the reason for a state other than Up
	since  time.Duration // when the state began
	until  time.Duration // when Down ends, or would end in a dry run
	outage time.Duration // when the outage began, or when Resume was called after that
	begun  time.Duration // calls that began earlier are not evidence about the present
	prober probe         // the probe under way, or the last
	trying bool          // a probe is under way
	tried  time.Duration // when it began

	// A pause that the service has asked for (law B6). It does not change the state.
	paused   time.Duration // no call starts before
	pausedBy string        // the reason

	answeredAt time.Duration // the last answer, or 0

	spans []span // the last states, the oldest first; empty before the first transition

	// The ramp takes the time of [Ramp], but at most half as long as the trouble before
	// it. So a short overload costs little, and a backend that goes down again and again
	// gets the whole ramp.
	troubled time.Duration // start of the outage, or of the first of several
	rampOver time.Duration // how long this ramp takes
	target   float64       // calls a second at its end: the pace before the outage; with Shared, of all processes
	started  float64       // calls that have started on it, or may start at once
	part     float64       // of the ramp that is for this process: 1 without Shared
	partAt   time.Duration // when the part changed last
	partFrom float64       // calls that the ramp allowed this process until then

	pace  pace   // of the starts while the backend is up
	calls window // the last calls, in the order of their ends
	onset onset  // the calls that started after a loss
}

// span is a state that the backend was in. Down and Probing are one span.
type span struct {
	state State
	since time.Duration
}

// mostSpans bounds the spans that a backend keeps.
const mostSpans = 32

// noteSpan notes a state for people who look at the last ones.
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

// advance makes the transitions that depend on time alone.
func (b *Backend) advance(t time.Duration) {
	switch {
	case b.state == Down && t >= b.until:
		b.enter(Probing, b.until)
		b.trying = false
	case b.state == Ramping && t-b.since >= b.rampOver:
		b.enter(Up, t)
		b.pace.restart(t)
		b.log(slog.LevelInfo, "backend: up")
		b.handOut(t, nil)
	}
}

func (b *Backend) enter(s State, t time.Duration) {
	b.state, b.since = s, t
	b.noteSpan(s, t)
	if s == Up {
		b.why = ""
	}
}

// obey pauses all calls for a delay that the service demands (law B6). Then the calls
// start at the same rate as before, from an empty bucket, so that there is no burst.
func (b *Backend) obey(t, demanded time.Duration) {
	until := t + min(demanded, b.longest)
	if until <= b.paused {
		return
	}
	b.pausedBy = "the service asks to wait " + demanded.String()
	if t >= b.paused && until-t >= logsPause {
		b.logBecause(b.pausedBy, slog.LevelInfo, "backend: paused", slog.Duration("for", until-t))
	}
	b.pauseUntil(t, until)
	if b.shared != nil {
		b.shared.proposePause(until - t)
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
	b.rouse(t, nil) // the seats wait for another time now
}

const (
	logsPause  = time.Second            // the shortest pause that writes a line
	shortPause = 100 * time.Millisecond // after a throttle that demands no delay
)

// goDown takes the backend down: for the delay d that the service demands, or, if d is 0,
// for a pause that grows with the outage. A relapse begins with the shortest pause again,
// so that short outages do not add up to a long one (law B4).
func (b *Backend) goDown(t, d time.Duration, why string) {
	if b.dryRun {
		b.wouldGoDown(t, d, why)
		return
	}
	wasUp := b.state == Up || b.state == Ramping
	if wasUp {
		b.outage = t
		b.noteTrouble(t)
	}
	if d == 0 {
		d = min(max(firstPause, (t-b.outage)/pauseShare), longerPause)
	}
	if b.state == Up {
		b.noteTarget(t)
	}
	b.takeBack(t)
	b.enter(Down, t)
	b.until = max(t+min(d, b.longest), b.paused)
	b.why, b.trying = why, false
	b.resetEvidence()
	b.proposeHealth(t, byEvidence)
	b.rouse(t, nil) // the seats wait for another time now
	if wasUp {
		b.counts.Trips++
		b.log(slog.LevelWarn, "backend: down", slog.Duration("for", b.until-t))
	}
}

// noteTarget sets the rate at the end of the next ramp to the present one.
func (b *Backend) noteTarget(t time.Duration) {
	pace := b.pace.perSecond(t)
	if b.shared != nil {
		pace += b.shared.machine.OthersPace()
	}
	b.target = max(leastTarget, pace)
}

// noteTrouble notes that the backend goes down or is held. An outage soon after the last
// ramp has begun is the same trouble.
func (b *Backend) noteTrouble(t time.Duration) {
	isFirst := b.begun == 0
	if isFirst || t-b.begun >= b.ramp {
		b.troubled = t
	}
}

// wouldGoDown notes that a backend without DryRun would be down, unless it would be down
// already.
func (b *Backend) wouldGoDown(t, d time.Duration, why string) {
	b.resetEvidence()
	isDown := t < b.until
	if d == 0 {
		d = firstPause
	}
	b.until = max(b.until, t+min(d, b.longest))
	if isDown {
		return
	}
	b.counts.WouldHaveTripped++
	b.logBecause(why, slog.LevelWarn, "backend: would be down without DryRun")
}

// startRamp begins the ramp after a successful probe. If the answer to the probe asks for
// a delay, the ramp begins after it.
func (b *Backend) startRamp(t time.Duration) {
	b.takeBack(t)
	b.enter(Ramping, max(t, b.paused))
	b.begun, b.trying = t, false
	b.rampOver = min(b.ramp, max(shortestRamp, (t-b.troubled)/rampShare))
	b.target = max(leastTarget, b.target)
	b.beginRamp(b.since)
	b.resetEvidence()
	b.rate.empty(t)
	b.callRate.empty(t)
	// Without b.why, which is the reason for the outage and not for the ramp.
	b.logBecause("", slog.LevelInfo, "backend: ramping: its service answers again", slog.Duration("over", b.rampOver))
	b.proposeHealth(t, byEvidence)
	b.handOut(t, nil)
}

// beginRamp begins the use of a ramp at a time. The part of the ramp before it is not
// used.
func (b *Backend) beginRamp(t time.Duration) {
	b.started = 0
	b.partFrom = 0
	b.partAt = t
	b.part = 1
	if b.shared != nil {
		b.part = b.shared.part(b.limit)
	}
}

// setPart changes the part of the ramp that is for this process. It had the part before
// until a time that is at most t.
func (b *Backend) setPart(t, until time.Duration, part float64) {
	if b.state == Ramping {
		b.partFrom = b.due(until)
		b.partAt = max(t, b.partAt)
	}
	b.part = part
}

const (
	rampShare    = 2 // a ramp takes at most half as long as the trouble before it
	shortestRamp = 100 * time.Millisecond
)

// leastTarget is the least rate at the end of a ramp, in calls a second.
const leastTarget = 16

// due returns how many calls the ramp allows until t. The rate of their starts grows in
// proportion to the time, so their number grows with its square.
func (b *Backend) due(t time.Duration) float64 {
	x := max(0, t-b.since).Seconds()
	from := max(0, b.partAt-b.since).Seconds()
	return b.partFrom + b.part*b.target*max(0, x*x-from*from)/(2*b.rampOver.Seconds())
}

// rampWait returns how long it takes until the ramp allows one more call, or 0.
func (b *Backend) rampWait(t time.Duration) time.Duration {
	if b.state != Ramping || b.started <= b.due(t)+rounding {
		return 0
	}
	ends := b.since + b.rampOver
	if b.part <= 0 {
		return max(1, ends-t)
	}
	from := max(0, b.partAt-b.since).Seconds()
	x := math.Sqrt(from*from + 2*b.rampOver.Seconds()*(b.started-b.partFrom)/(b.target*b.part))
	if x >= b.rampOver.Seconds() {
		return max(1, ends-t)
	}
	next := b.since + time.Duration(math.Ceil(x*float64(time.Second)))
	return max(1, next-t)
}

// startWait returns how long it takes until rates and ramp allow a call of this cost, or
// 0.
func (b *Backend) startWait(t time.Duration, cost float64) time.Duration {
	b.fillRates(t)
	return max(b.rate.wait(cost), b.callRate.wait(1), b.rampWait(t))
}

func (b *Backend) fillRates(t time.Duration) {
	b.tuner.grow(&b.rate, t)
	b.rate.fill(t)
	b.callRate.fill(t)
}

// takeStart takes the part of a call from rates and ramp. A ramp that was not used saves
// up little.
func (b *Backend) takeStart(t time.Duration, cost float64) {
	b.rate.take(cost)
	b.callRate.take(1)
	if b.state == Ramping {
		saved := max(1, b.target*b.part*spare)
		b.started = max(b.started, b.due(t)-saved) + 1
	}
}

// giveStarts is the reverse of takeStart for n calls.
func (b *Backend) giveStarts(n int, cost float64) {
	b.rate.give(float64(n) * cost)
	b.callRate.give(float64(n))
	if b.state == Ramping {
		b.started = max(0, b.started-float64(n))
	}
}

// allowed returns how many calls may run.
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

// hasProbe reports whether this process may probe the service. With Shared only one
// process of the fleet may.
func (b *Backend) hasProbe() bool { return b.shared == nil || b.shared.mayProbe() }

// probes returns the time for which the running probe keeps other calls away. It is 0
// without a probe, and if the probe takes too long.
func (b *Backend) probes(t time.Duration) time.Duration {
	if !b.trying {
		return 0
	}
	return max(0, b.tried+longerPause-t)
}

func (b *Backend) resetEvidence() {
	b.calls.reset()
	b.onset = onset{}
}

// failing returns which calls were lost if they were too many, or "".
func (b *Backend) failing() string {
	w, o := &b.calls, &b.onset
	tooMany := b.lossShare * float64(b.window)
	switch {
	case b.state == Ramping:
		if w.losses >= relapse && float64(w.losses) > b.lossShare*float64(w.heard) {
			return w.String()
		}
	case float64(w.losses) > tooMany || w.row >= max(fewLosses, b.used):
		return w.String()
	case o.isOn && float64(o.lost) > tooMany:
		return fmt.Sprintf("%d of %d calls that started after a loss", o.lost, o.started)
	}
	return ""
}

const (
	relapse   = 3 // losses at least
	fewLosses = 5 // in a row at least
)

// log notes a line with the reason for the state, which is written without the lock.
func (b *Backend) log(level slog.Level, text string, more ...any) {
	b.logBecause(b.why, level, text, more...)
}

func (b *Backend) logBecause(why string, level slog.Level, text string, more ...any) {
	args := append([]any{slog.String("backend", b.name)}, more...)
	if why != "" {
		args = append(args, slog.String("reason", why))
	}
	b.lines = append(b.lines, line{level, text, args})
}
