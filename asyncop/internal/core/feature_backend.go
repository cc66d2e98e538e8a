package core

import (
	"fmt"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
)

// AtBackend adds a feature: an attempt starts when Host.Seat says so, which hears how it went. cost and tenant are what it costs there,
// and for whom it is; nil: 1, and none.
func AtBackend[IN, OUT any](g *Machine[IN, OUT], cost func(in IN) float64, tenant func(in IN) string) {
	b := &atBackend[IN, OUT]{core: g, seat: g.Host.Seat, cost: cost, tenant: tenant, of: newSide[asked](g)}
	b.broke = func(s *Slot[IN, OUT], err error) {
		if s.phase == ready {
			g.ready.Cancel(&s.timer)
			g.retryOver(s)
		}
		g.fails(s, err, false)
	}
	g.exact = true
	g.admit, g.join = b.admit, b.join
	g.opensAt = b.opensAt
	g.heard = b.heard
	g.forgiven = func(s *Slot[IN, OUT]) int { return min(b.of.get(s.place).outages, mostForgiven) }
	g.situation.Found = g.found
	g.situation.MayRetry = func() bool { return b.seat.MayRetry(g.Timers.Time(g.now)) }
	g.closed = b.closed
	g.turnBegins = append(g.turnBegins, func() (ends bool) { b.short = false; return false })
	g.turnEnds = append(g.turnEnds, func() { b.seat.DoneAsking(g.Timers.Time(g.now), b.short) })
	g.cut = append(g.cut, b.seat.Leave)
	g.released = append(g.released, func(_ *Slot[IN, OUT], a *call.Attempt[OUT], how call.Released) {
		if how.Over { // else a function of it still runs, and gives the permit back
			b.seat.Release(a.Ref.Stamp)
		}
	})
}

// mostForgiven is how many attempts of an element do not count since they met an outage.
const mostForgiven = 3

type atBackend[IN, OUT any] struct {
	core    *Machine[IN, OUT]
	seat    gate.Seat
	cost    func(in IN) float64
	tenant  func(in IN) string
	broke   func(s *Slot[IN, OUT], err error)
	attempt gate.Attempt  // that is asked for; used again and again
	outcome gate.Evidence // that is passed on; used again and again
	of      side[asked]
	call    *gate.Call // for several elements, that has started last
	short   bool       // no attempt starts any more in this turn
}

// asked is what is known of an element here.
type asked struct {
	outages int        // attempts that met an outage
	tenant  string     // for whom attempts were asked for
	call    *gate.Call // for several elements, that its attempt is part of
}

// admit asks for an attempt of s. If only s must wait, others go on.
func (b *atBackend[IN, OUT]) admit(s *Slot[IN, OUT]) bool {
	if b.short {
		return false
	}
	g := b.core
	b.attempt = gate.Attempt{Cost: 1, Retry: s.attempts > 0, Outages: b.of.get(s.place).outages, Element: element(s)}
	b.attempt.Hurried = s.isHurried(g.now)
	if !b.describe(s) {
		return false
	}
	answer := b.seat.Start(g.Timers.Time(g.now), &b.attempt)
	g.stamp = answer.Stamp
	switch {
	case answer.Wait == 0:
		if g.callsOf != nil {
			b.call = &gate.Call{Element: b.attempt.Element, Left: 1}
			b.of.ref(s.place).call = b.call
		}
		return true
	case answer.Other:
		b.putOff(s, answer.Wait)
	default:
		b.short = true
	}
	return false
}

// join adds s to the call that has started last. It reports whether s goes on: its cost may break.
func (b *atBackend[IN, OUT]) join(s *Slot[IN, OUT]) bool {
	b.attempt = gate.Attempt{Retry: s.attempts > 0}
	if !b.describe(s) {
		return false
	}
	b.seat.Join(&b.attempt)
	b.call.Left++
	b.of.ref(s.place).call = b.call
	return true
}

// element tells s apart.
func element[IN, OUT any](s *Slot[IN, OUT]) uint64 {
	return uint64(s.accepted)<<16 | uint64(uint16(s.place))
}

// describe finds out what an attempt of s costs, and for whom it is. That is user code: it reports whether s goes on.
func (b *atBackend[IN, OUT]) describe(s *Slot[IN, OUT]) bool {
	if b.cost == nil && b.tenant == nil {
		return true
	}
	g := b.core
	g.calling(s, b.broke)
	if b.cost != nil {
		b.attempt.Cost = b.cost(s.in)
	}
	if b.tenant != nil {
		b.attempt.Tenant = b.tenant(s.in)
		b.of.ref(s.place).tenant = b.attempt.Tenant
	}
	g.user.after = nil
	if c := b.attempt.Cost; !(c >= 0 && c <= math.MaxFloat64) { // in this form NaN fails too
		b.broke(s, fmt.Errorf("asyncop: Cost: want a finite number of 0 or more: %v", c))
		return false
	}
	g.refresh()
	g.overdue = g.now >= s.due
	return !g.overdue
}

// putOff lets s wait as in a back-off, for what concerns others of its operator not at all. The end of the input does not cut that.
func (b *atBackend[IN, OUT]) putOff(s *Slot[IN, OUT], wait time.Duration) {
	g := b.core
	if s.phase == ready {
		g.ready.Cancel(&s.timer)
	} else {
		s.retry |= noRetry
	}
	g.enter(s, backoff)
	s.retry |= Demanded
	g.Timers.Arm(&s.timer, later(g.now, wait))
}

// opensAt returns when to ask again: Now, an instant, or Never if the operator is woken when it may.
func (b *atBackend[IN, OUT]) opensAt() time.Duration {
	if !b.short {
		return Now
	}
	g := b.core
	calls := g.startable()
	if g.callsOf != nil {
		calls = g.callsOf(calls)
	}
	switch wait := b.seat.Wait(g.Timers.Time(g.now), min(calls, g.permits)); wait {
	case 0:
		return Now
	case gate.Never:
		return Never
	default:
		return later(g.now, wait)
	}
}

// heard passes on how the attempt of s went.
func (b *atBackend[IN, OUT]) heard(s *Slot[IN, OUT], o gate.Evidence) (outage bool) {
	g := b.core
	of := b.of.get(s.place)
	b.outcome = o
	b.outcome.Begun, b.outcome.Element = g.Timers.Time(s.last), element(s)
	b.outcome.Tenant, b.outcome.Call = of.tenant, of.call
	if outage = b.seat.AttemptEnded(g.Timers.Time(g.now), &b.outcome); outage {
		of.outages++
	}
	if of.call = nil; of != b.of.get(s.place) {
		*b.of.ref(s.place) = of
	}
	b.outcome.Err, b.outcome.Call = nil, nil
	return outage
}

// closed returns why s, whose time has run out, could not start.
func (b *atBackend[IN, OUT]) closed(s *Slot[IN, OUT]) (why error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	g := b.core
	late := gate.Late{Tenant: b.of.get(s.place).tenant, PutOff: s.attempts == 0 && s.phase == backoff}
	if s.attempts > 0 {
		late.Begun = g.Timers.Time(s.last)
		if g.describe != nil {
			_ = call.OffLoop(func() error { // an observer has made the context
				meta, _ := message.MetaFromContext(g.describe(s))
				late.Failed = meta.LastFailure
				return nil
			})
		}
	}
	return b.seat.WhyWaiting(g.Timers.Time(g.now), &late)
}
