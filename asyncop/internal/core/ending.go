package core

import (
	"context"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
)

// Ended is called by the driver for the elements that Abandon returned, since what becomes of them is known later.
func (g *Machine[IN, OUT]) Ended(s *Slot[IN, OUT], how observe.EndKind) {
	if r := g.ended(s, how); r != nil {
		g.Gone(r, how)
	}
}

// ended is the one place where an element ends (law O1). It returns the rider of an observed one, which Gone wants to have back.
func (g *Machine[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) *Rider {
	g.settleEnded(s, how)
	switch how {
	case observe.Emitted, observe.Empty:
		g.counts.Completed++
		return g.over(s, how, nil)
	case observe.HandedOver:
		g.counts.HandedOver++
	case observe.Dropped:
		g.counts.Dropped++
	case observe.Failed:
		g.counts.Failed++
	case observe.Abandoned, observe.Kept:
		g.counts.Abandoned++
		return g.over(s, how, g.failure)
	default: // Discarded: it was not accepted
	}
	return g.over(s, how, s.err)
}

// settle ends s with the results of its attempt, or with err.
func (g *Machine[IN, OUT]) settle(s *Slot[IN, OUT], err error) {
	if err != nil {
		g.fail(s, err)
		return
	}
	g.attemptOver(s, false, 0)
	g.enter(s, done)
	if g.Keys == nil || g.inTurn(s) { // law K1; else when it is
		g.Queue.Complete(s.entry)
		g.leaveLane(s)
	}
}

// fail goes on with s, which has failed: Handle may have results in place of that.
func (g *Machine[IN, OUT]) fail(s *Slot[IN, OUT], err error) {
	if g.HandlesAll {
		g.handle(s, err, false)
		return
	}
	g.giveUp(s, err)
}

// giveUp ends s by the failure policy.
func (g *Machine[IN, OUT]) giveUp(s *Slot[IN, OUT], err error) {
	g.tick()
	s.attempt = nil
	s.err = err
	g.counts.Failures++
	g.attemptOver(s, false, 0)
	if g.OnFailure == HandOver {
		g.enter(s, failing)
		if g.inTurn(s) { // law K1; else when it is
			g.failing.Push(s)
		}
		return
	}
	g.enter(s, ended)
	g.Queue.Complete(s.entry)
	g.leaveLane(s)
	r := g.report(s) // while it has its rider
	if g.OnFailure == Drop {
		g.Ended(s, observe.Dropped)
		g.Hooks.GivenUp(r, observe.Dropped)
		return
	}
	g.Ended(s, observe.Failed)
	if g.failure == nil {
		g.failedIn = r.Context
	}
	g.end(g.Hooks.RunFailed(r), ByElement)
}

// report describes an element.
func (g *Machine[IN, OUT]) report(s *Slot[IN, OUT]) Report[IN] {
	r := Report[IN]{
		Element: s.in, Err: s.err, Attempts: int(s.attempts), Elapsed: g.now - s.accepted, Verdict: s.verdict,
		Reason: s.reason(), Reasons: s.reasons(), InDoubt: s.doubt != noDoubt, Tracked: s.doubt == tracked, Failed: s.phase == failing, Timeout: g.Timeout,
		Context: g.contextOfElement(s),
	}
	if s.limited() {
		r.Timeout = s.extra.rare.limit.total
	}
	if s.attempts > 0 {
		r.First, r.Last = g.Timers.Time(s.first), g.Timers.Time(s.last)
	}
	return r
}

// ---- Results out

// Head returns what the head of the queue has to emit, results or a control element; neither, if its turn has not come. m is the
// message that it is, or zero. Elements that emit nothing leave here. The head stays until Left is called.
func (g *Machine[IN, OUT]) Head() (results []OUT, m call.Message, control any) {
	for {
		s := g.head()
		if s == nil {
			return nil, m, nil
		}
		switch s := s; s.phase {
		case controlElement:
			return nil, m, s.extra.rare.held
		case done:
			if results = s.results(); len(results) > 0 {
				return results, s.message(), nil
			}
		default: // ended
		}
		if r := g.leave(s, observe.Empty); r != nil {
			g.Gone(r, observe.Empty)
		}
	}
}

// Left removes the head of the queue: it has been emitted. Gone wants to have the rider back, if there is one.
func (g *Machine[IN, OUT]) Left() *Rider { return g.leave(g.head(), observe.Emitted) }

func (g *Machine[IN, OUT]) leave(s *Slot[IN, OUT], how observe.EndKind) (r *Rider) {
	if s.phase == done {
		r = g.ended(s, how)
	}
	if s == g.oldest {
		g.oldest = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase != controlElement })
	}
	switch {
	case s.extra == nil:
	case g.Keys != nil:
		g.keepPlace(s)
	default:
		g.keepExtra(s)
	}
	g.Queue.Pop()
	g.slots.leave(s)
	return r
}

// Describe describes an element that has failed or was abandoned.
func (g *Machine[IN, OUT]) Describe(s *Slot[IN, OUT]) Report[IN] {
	return g.report(s)
}

// Abandon gives up shared permits, ends the contexts of all attempts and returns the elements that have not ended, in input order (law A1). Ended is to be
// called for each.
func (g *Machine[IN, OUT]) Abandon() (cut []*Slot[IN, OUT]) {
	g.abandoned = true
	g.tick()
	g.sendBatch() // one that user code has broken off gives its permits back
	if s := g.Host.Share; s != nil {
		if g.call.broke != nil && g.call.kind == callPace {
			s.Release()
		}
		s.Leave()
	}
	g.CutSink()
	judged := g.brokenOff()
	for s := g.first(); s != nil; s = s.next() {
		switch {
		case s.phase == controlElement:
			continue
		case s == judged: // its attempt or question has ended
		case s.phase == preparing || s.phase == running:
			end := g.endAttempt(s, s.attempt, cutOff)
			if s.phase == running {
				s.doubt = max(s.doubt, doubtOf(end.Tracked))
			}
			g.conclude(s, 0, context.Canceled)
		case s.phase == deciding:
			g.counts.Deciding--
			s.take().(*question[IN, OUT]).Cut()
		case s.phase == handling:
			s.take().(*call.Handling[OUT]).Cut()
		case s.phase == backoff || s.phase == ready:
			g.counts.WaitingForRetry--
		case s.phase == behind:
			g.counts.WaitingForKey--
		case s.phase == ended:
			continue
		case s.phase == done && len(s.results()) == 0:
			g.Ended(s, observe.Empty)
			continue
		case s.phase == done && s.attempts > 0:
			s.doubt = untracked // that it has taken effect is not known to anybody else
		}
		g.attemptOver(s, false, 0)
		cut = append(cut, s)
	}
	return cut
}

// brokenOff returns the element that the policy was judging when it ended the core's goroutine (law A6), if that has no successor.
func (g *Machine[IN, OUT]) brokenOff() *Slot[IN, OUT] {
	switch {
	case g.call.broke == nil:
	case g.call.kind == callJudge:
		g.doubt(g.call.entry)
		return g.call.entry
	case g.call.kind == callConclude:
		return g.call.entry
	}
	return nil
}

// ---- Bookkeeping

// enter changes the phase of s and keeps the cursors on the oldest element of their kind.
func (g *Machine[IN, OUT]) enter(s *Slot[IN, OUT], p phase) {
	if s.phase == fresh {
		g.unbegun--
	}
	if g.Keys != nil {
		g.enterKeyed(s, p)
	}
	s.phase = p
	if p != preparing && p != running { // else it is the same attempt
		s.turn = 0
	}
	if s == g.fresh {
		g.fresh = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase == fresh })
	}
	if p.live() {
		return
	}
	if s == g.live {
		g.live = g.nextLive(s)
	}
	if s.limited() {
		g.odd.Cancel(&s.extra.rare.limit.odd)
	}
}

// nextLive returns the next element after s with a live deadline that comes in input order.
func (g *Machine[IN, OUT]) nextLive(s *Slot[IN, OUT]) *Slot[IN, OUT] {
	return nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase.live() && !s.limited() })
}

// nextIn returns the next element after s that is wanted. A cursor passes every element once, so this is constant time
// in the long run.
func nextIn[IN, OUT any](
	s *Slot[IN, OUT], wanted func(*Slot[IN, OUT]) bool,
) *Slot[IN, OUT] {
	for s = s.next(); s != nil && !wanted(s); {
		s = s.next()
	}
	return s
}
