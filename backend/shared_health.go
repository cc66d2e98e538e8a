package backend

import (
	"log/slog"
	"time"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// change is the cause of a change of state.
type change bool

const (
	byEvidence change = false // of calls
	byOrder    change = true  // of a person
)

// proposeHealth passes the state on to the fleet. With DryRun it passes on orders only,
// because the ends of calls do not change the state.
func (b *Backend) proposeHealth(t time.Duration, by change) {
	f := b.shared
	if f == nil || b.dryRun && by == byEvidence {
		return
	}
	h := fleet.Health{Why: shortened(b.why), Target: b.target, Outage: b.outage, Trouble: b.troubled}
	switch b.state {
	case Up: // at the end of the ramp
		return
	case Down:
		h.State = fleet.Down
		h.Until = b.until
	case Probing:
		h.State = fleet.Down
		h.Until = t
	case Ramping:
		h.State = fleet.Ramping
		h.Over = b.rampOver
		h.Until = b.since + b.rampOver
	case Held:
		h.State = fleet.Held
	}
	f.machine.Propose(f.instant(), h, by == byOrder)
	f.notify()
	f.wake()
}

func shortened(why string) string {
	const most = 1000
	if len(why) > most {
		return why[:most] + "…"
	}
	return why
}

// proposePause passes the pause on to the fleet.
func (f *fleetShare) proposePause() {
	b := f.backend
	f.machine.ProposePause(fleet.Pause{Until: b.paused, Why: shortened(b.pausedBy)})
	f.wake()
}

// adopt makes the backend obey the recorded state and pause of other processes.
func (f *fleetShare) adopt() {
	b := f.backend
	t := b.now()
	h, news := f.machine.Adopt(t)
	if f.machine.Lapsed() {
		b.logBecause(nil, "the state of the fleet has changed meanwhile", slog.LevelWarn, "backend: an order was not carried out: its process did not reach the engine in time")
	}
	if news != fleet.NoNews {
		b.adopt(t, h)
		if news == fleet.OldState {
			b.started++ // the first call of the ramp
		}
		f.notify()
		b.handOut(t, nil)
	}
	p := f.machine.Pause()
	if p.Until > max(t, b.paused) && !b.dryRun {
		isNews := t >= b.paused && p.Until-t >= logsPause
		b.pausedBy = p.Why
		b.pauseUntil(t, p.Until)
		if isNews {
			b.logBecause(nil, p.Why, slog.LevelInfo, "backend: paused, as asked in another process", slog.Duration("for", p.Until-t))
		}
	}
}

// adopt enters the fleet's recorded state. With DryRun it obeys only a hold.
func (b *Backend) adopt(t time.Duration, h fleet.Health) {
	if b.dryRun && h.State != fleet.Held {
		h = fleet.Health{State: fleet.Up}
	}
	before := b.state
	wasUp := before == Up || before == Ramping
	isSame := h.State == fleet.Up && before == Up || h.State == fleet.Held && before == Held && b.why == h.Why
	if isSame {
		return
	}
	b.takeBack(t)
	b.resetEvidence()
	b.trying = false
	b.why = h.Why
	if h.State != fleet.Up {
		b.target = max(leastTarget, h.Target)
		b.outage = h.Outage
		b.troubled = h.Trouble
	}
	switch h.State {
	case fleet.Up:
		b.enter(nil, Up, t)
		b.begun = t
		b.pace.restart(t)
		b.log(nil, slog.LevelInfo, "backend: up, as another process has found")
	case fleet.Down:
		b.enter(nil, Down, t)
		b.until = max(h.Until, b.paused)
		if wasUp {
			b.log(nil, slog.LevelWarn, "backend: down, as another process has found", slog.Duration("for", max(0, b.until-t)))
		}
		b.advance(nil, t)
	case fleet.Ramping:
		b.enter(nil, Ramping, h.Until-h.Over)
		b.begun = t
		b.rampOver = max(shortestRamp, h.Over)
		b.beginRamp(nil, t)
		b.rate.empty(t)
		b.callRate.empty(t)
		b.logBecause(nil, "", slog.LevelInfo, "backend: ramping: another process has received an answer", slog.Duration("over", b.rampOver))
	case fleet.Held:
		b.enter(nil, Held, t)
		b.log(nil, slog.LevelWarn, "backend: held, as ordered in another process")
	}
}

func (f *fleetShare) part(share int) float64 {
	if f.limit == 0 {
		return 0
	}
	return min(1, float64(share)/float64(f.limit))
}

// mayProbe reports whether this process may probe the service. It probes by itself if it
// does not reach its engine.
func (f *fleetShare) mayProbe() bool {
	b := f.backend
	isFromBefore := f.isProbing(b.now()) && !b.trying // an order has ended the wait for this probe
	return f.permits.source.isAlone || f.machine.MayProbe(f.instant()) && !isFromBefore
}

func (f *fleetShare) isProbing(t time.Duration) bool {
	return f.permits.probes > 0 && t-f.backend.tried < fleet.ProbeTime
}

// noteLateCall notes that a call whose lease had ended begins now. While the backend is
// probing, it keeps other probes away, but is no evidence: its attempt began before. It
// may be a probe whose process was paused.
func (f *fleetShare) noteLateCall(p *permit) {
	b := f.backend
	_, isHeld := f.permits.all[p.stamp]
	if b.state != Probing || !isHeld {
		return
	}
	b.tried = b.now()
	if !p.isProbe {
		f.permits.noteProbe(p.stamp)
	}
}

// callStarts reports whether the state lets a call start with p, a permit of an earlier
// lease. It waits while another probe is under way.
func (f *fleetShare) callStarts(p *permit) bool {
	b := f.backend
	switch b.state {
	case Up, Ramping:
		return true
	case Probing:
		isAnother := f.isProbing(b.now()) && (f.permits.probes > 1 || !p.isProbe)
		return f.mayProbe() && !isAnother
	case Down, Held:
	}
	return false
}
