package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Admission adds a feature: an attempt needs a permit of Host.Share, if that is set, and pace says when it may start: it returns
// 0, or how long to wait before it is asked again; nil: at any time. An attempt that must wait has neither.
func Admission[IN, OUT any](g *Machine[IN, OUT], pace func(now time.Time) (wait time.Duration)) {
	a := &admission[IN, OUT]{core: g, pace: pace}
	a.paceBroke = func(s *Slot[IN, OUT], err error) {
		a.release()
		if s.phase == ready {
			g.ready.Cancel(&s.timer)
			g.counts.WaitingForRetry--
		}
		g.fail(s, err)
	}
	g.exact = g.exact || pace != nil
	g.admit = a.admit
	g.isShut = func() bool { return a.short || g.now < a.next }
	g.opensAt = a.opensAt
	g.cut = append(g.cut, func() {
		if g.call.broke != nil && a.isAsking { // the pace has ended the goroutine, and has no successor
			a.release()
		}
	})
	if share := g.Host.Share; share != nil {
		g.turnBegins = append(g.turnBegins, func() (ends bool) { a.short = false; return false })
		g.turnEnds = append(g.turnEnds, func() { share.Settle(a.short) })
		g.cut = append(g.cut, share.Leave)
		g.released = append(g.released, a.released)
	}
}

type admission[IN, OUT any] struct {
	core      *Machine[IN, OUT]
	pace      func(now time.Time) (wait time.Duration)
	paceBroke func(s *Slot[IN, OUT], err error)
	isAsking  bool          // the pace, with a shared permit
	short     bool          // no shared permit is free, as far as this turn is concerned
	next      time.Duration // no attempt starts before
}

// admit takes a shared permit for an attempt of s and asks the pace.
func (a *admission[IN, OUT]) admit(s *Slot[IN, OUT]) bool {
	if share := a.core.Host.Share; share != nil && !share.Take() {
		a.short = true
		return false
	}
	if a.pace != nil && !a.ask(s) {
		a.release()
		return false
	}
	return true
}

// ask asks the pace whether an attempt of s may start now. That is user code: the time may run out meanwhile.
func (a *admission[IN, OUT]) ask(s *Slot[IN, OUT]) bool {
	g := a.core
	at := g.now
	a.isAsking = true
	g.calling(s, a.paceBroke)
	wait := a.pace(g.Timers.Time(at))
	g.called()
	a.isAsking = false
	g.refresh()
	if wait > 0 {
		a.next = later(at, wait)
		return false
	}
	g.overdue = g.now >= s.due
	return !g.overdue
}

func (a *admission[IN, OUT]) release() {
	a.isAsking = false
	if share := a.core.Host.Share; share != nil {
		share.Release()
	}
}

// opensAt returns when to ask again: Now, an instant, or Never if the operator is woken when it may.
func (a *admission[IN, OUT]) opensAt() time.Duration {
	g := a.core
	switch share := g.Host.Share; {
	case g.now < a.next:
		return a.next
	case share != nil && share.Wait(min(g.waitingCalls(), g.permits)):
		return Never
	}
	return Now
}

// waitingCalls returns how many calls wait for nothing but a feature.
func (g *Machine[IN, OUT]) waitingCalls() int {
	n := g.ready.Len() + g.unbegun
	if g.callsOf != nil {
		return g.callsOf(n)
	}
	return n
}

// released gives the shared permit of an attempt back that has ended, unless a function of it still runs.
func (a *admission[IN, OUT]) released(_ *Slot[IN, OUT], _ *call.Attempt[OUT], how call.Released) {
	if how.Over {
		a.core.Host.Share.Release()
	}
}
