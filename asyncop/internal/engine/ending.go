package engine

import (
	"context"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/queue"
)

// Ending is how an element ends (law A1).
type Ending uint8

// How elements end.
const (
	Emitted    Ending = iota // all its results have left
	Empty                    // it had none
	HandedOver               // it failed, and was handed over
	Dropped                  // it failed, and was dropped
	Failed                   // it failed, and the run with it
	Abandoned                // the run has ended before it did
	Kept                     // the run has ended, and the final checkpoint has it
	Discarded                // it was not accepted, since the run has ended; or its results were not taken
)

// Ended is called by the driver for the elements that Abandon returned, since what becomes of them is known later.
func (g *Engine[IN, OUT]) Ended(e *queue.Entry[Slot[IN, OUT]], how Ending) {
	if r := g.ended(e, how); r != nil {
		g.Gone(r, how)
	}
}

// ended is the one place where an element ends (law O1). It returns the rider of an observed one, which Gone wants to have back.
func (g *Engine[IN, OUT]) ended(e *queue.Entry[Slot[IN, OUT]], how Ending) *Rider {
	s := &e.Value
	g.settleEnded(s, how)
	switch how {
	case Emitted, Empty:
		g.counts.Completed++
		return g.over(s, how, nil)
	case HandedOver:
		g.counts.HandedOver++
	case Dropped:
		g.counts.Dropped++
	case Failed:
		g.counts.Failed++
	case Abandoned, Kept:
		g.counts.Abandoned++
		return g.over(s, how, g.failure)
	default: // Discarded: it was not accepted
	}
	return g.over(s, how, s.err)
}

// settle ends e with the results of its attempt, or with err.
func (g *Engine[IN, OUT]) settle(e *queue.Entry[Slot[IN, OUT]], err error) {
	if err != nil {
		g.fail(e, err)
		return
	}
	g.attemptOver(&e.Value, false, 0)
	g.enter(e, done)
	if g.Keys == nil || g.inTurn(e) { // law K1; else when it is
		g.Queue.Complete(e)
		g.leaveLane(e)
	}
}

// fail goes on with e, which has failed: Handle may have results in place of that.
func (g *Engine[IN, OUT]) fail(e *queue.Entry[Slot[IN, OUT]], err error) {
	if g.HandlesAll {
		g.handle(e, err, false)
		return
	}
	g.giveUp(e, err)
}

// giveUp ends e by the failure policy.
func (g *Engine[IN, OUT]) giveUp(e *queue.Entry[Slot[IN, OUT]], err error) {
	g.tick()
	s := &e.Value
	s.attempt = nil
	s.err = err
	g.counts.Failures++
	g.attemptOver(s, false, 0)
	if g.OnFailure == HandOver {
		g.enter(e, failing)
		if g.inTurn(e) { // law K1; else when it is
			g.failing.Push(e)
		}
		return
	}
	g.enter(e, ended)
	g.Queue.Complete(e)
	g.leaveLane(e)
	r := g.report(s) // while it has its rider
	if g.OnFailure == Drop {
		g.Ended(e, Dropped)
		g.Hooks.GivenUp(r, Dropped)
		return
	}
	g.Ended(e, Failed)
	if g.failure == nil {
		g.failedIn = r.Context
	}
	g.end(g.Hooks.RunFailed(r), ByElement)
}

// report describes an element.
func (g *Engine[IN, OUT]) report(s *Slot[IN, OUT]) Report[IN] {
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
func (g *Engine[IN, OUT]) Head() (results []OUT, m call.Message, control any) {
	for {
		e := g.Queue.Head()
		if e == nil {
			return nil, m, nil
		}
		switch s := &e.Value; s.phase {
		case controlElement:
			return nil, m, s.extra.rare.held
		case done:
			if results = s.results(); len(results) > 0 {
				return results, s.message(), nil
			}
		default: // ended
		}
		if r := g.leave(e, Empty); r != nil {
			g.Gone(r, Empty)
		}
	}
}

// Left removes the head of the queue: it has been emitted. Gone wants to have the rider back, if there is one.
func (g *Engine[IN, OUT]) Left() *Rider { return g.leave(g.Queue.Head(), Emitted) }

func (g *Engine[IN, OUT]) leave(e *queue.Entry[Slot[IN, OUT]], how Ending) (r *Rider) {
	if e.Value.phase == done {
		r = g.ended(e, how)
	}
	if e == g.oldest {
		g.oldest = nextIn(e, func(s *Slot[IN, OUT]) bool { return s.phase != controlElement })
	}
	switch {
	case e.Value.extra == nil:
	case g.Keys != nil:
		g.keepPlace(&e.Value)
	default:
		g.keepExtra(&e.Value)
	}
	g.Queue.Pop()
	return r
}

// Describe describes an element that has failed or was abandoned.
func (g *Engine[IN, OUT]) Describe(e *queue.Entry[Slot[IN, OUT]]) Report[IN] {
	return g.report(&e.Value)
}

// Abandon gives up shared permits, ends the contexts of all attempts and returns the elements that have not ended, in input order (law A1). Ended is to be
// called for each.
func (g *Engine[IN, OUT]) Abandon() (cut []*queue.Entry[Slot[IN, OUT]]) {
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
	for e := g.Queue.First(); e != nil; e = e.Next() {
		s := &e.Value
		switch {
		case s.phase == controlElement:
			continue
		case e == judged: // its attempt or question has ended
		case s.phase == preparing || s.phase == running:
			end := g.endAttempt(e, s.attempt, cutOff)
			if s.phase == running {
				s.doubt = max(s.doubt, doubtOf(end.Tracked))
			}
			g.conclude(s, 0, context.Canceled)
		case s.phase == deciding:
			g.counts.Deciding--
			s.take().(*question[IN, OUT]).Cut()
		case s.phase == handling:
			s.take().(*call.Handling[*queue.Entry[Slot[IN, OUT]], OUT]).Cut()
		case s.phase == backoff || s.phase == ready:
			g.counts.WaitingForRetry--
		case s.phase == behind:
			g.counts.WaitingForKey--
		case s.phase == ended:
			continue
		case s.phase == done && len(s.results()) == 0:
			g.Ended(e, Empty)
			continue
		case s.phase == done && s.attempts > 0:
			s.doubt = untracked // that it has taken effect is not known to anybody else
		}
		g.attemptOver(s, false, 0)
		cut = append(cut, e)
	}
	return cut
}

// brokenOff returns the element that the policy was judging when it ended the engine's goroutine (law A6), if that has no successor.
func (g *Engine[IN, OUT]) brokenOff() *queue.Entry[Slot[IN, OUT]] {
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

// enter changes the phase of e and keeps the cursors on the oldest element of their kind.
func (g *Engine[IN, OUT]) enter(e *queue.Entry[Slot[IN, OUT]], p phase) {
	if e.Value.phase == fresh {
		g.unbegun--
	}
	if g.Keys != nil {
		g.enterKeyed(e, p)
	}
	e.Value.phase = p
	if e == g.fresh {
		g.fresh = nextIn(e, func(s *Slot[IN, OUT]) bool { return s.phase == fresh })
	}
	if p.live() {
		return
	}
	if e == g.live {
		g.live = g.nextLive(e)
	}
	if e.Value.limited() {
		g.odd.Cancel(&e.Value.extra.rare.limit.odd)
	}
}

// nextLive returns the next element after e with a live deadline that comes in input order.
func (g *Engine[IN, OUT]) nextLive(e *queue.Entry[Slot[IN, OUT]]) *queue.Entry[Slot[IN, OUT]] {
	return nextIn(e, func(s *Slot[IN, OUT]) bool { return s.phase.live() && !s.limited() })
}

// nextIn returns the next element after e that is wanted. A cursor passes every element once, so this is constant time
// in the long run.
func nextIn[IN, OUT any](
	e *queue.Entry[Slot[IN, OUT]], wanted func(*Slot[IN, OUT]) bool,
) *queue.Entry[Slot[IN, OUT]] {
	for e = e.Next(); e != nil && !wanted(&e.Value); {
		e = e.Next()
	}
	return e
}
