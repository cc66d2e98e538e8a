package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// settle ends s with the results of its attempt, or with err.
func (g *Machine[IN, OUT]) settle(s *Slot[IN, OUT], err error) {
	if err != nil {
		g.fails(s, err, false)
		return
	}
	g.follows(s, false, 0)
	g.enter(s, done)
	if g.inTurn == nil || g.inTurn(s) { // else when it is
		g.complete(s)
	}
}

// follows says what follows from the attempt of s that has ended, if that is not known yet: nothing, or a retry after delay.
func (g *Machine[IN, OUT]) follows(s *Slot[IN, OUT], again bool, delay time.Duration) {
	if g.outcome.is {
		for _, f := range g.over {
			f(s, &g.outcome, again, delay)
		}
		g.outcome = outcome{}
	}
}

// complete lets s, which has ended, leave when its turn comes.
func (g *Machine[IN, OUT]) complete(s *Slot[IN, OUT]) {
	g.Queue.Complete(s.entry)
	for _, f := range g.completes {
		f(s)
	}
}

// fails goes on with s, which has failed: a feature may have results in place of that.
func (g *Machine[IN, OUT]) fails(s *Slot[IN, OUT], err error, timedOut bool) {
	g.follows(s, false, 0)
	if g.rescue == nil || !g.rescue(s, err, timedOut) {
		g.giveUp(s, err)
	}
}

// giveUp ends s, which has failed: it is handed over, dropped, or fails the run.
func (g *Machine[IN, OUT]) giveUp(s *Slot[IN, OUT], err error) {
	g.tick()
	s.attempt = nil
	s.err = err
	g.state.Stats.Failures++
	if g.offer != nil {
		g.offer(s)
		return
	}
	g.enter(s, ended)
	g.complete(s)
	if g.FailsRun {
		g.failRun(s)
		return
	}
	r := g.report(s) // while its observers know of it
	g.Ended(s, observe.Dropped)
	g.Hooks.GivenUp(r, observe.Dropped)
}

// failRun ends the run, since s has failed.
func (g *Machine[IN, OUT]) failRun(s *Slot[IN, OUT]) {
	r := g.report(s)
	g.Ended(s, observe.Failed)
	if g.state.Failure == nil {
		g.state.FailedIn = r.Context
	}
	g.end(g.Hooks.RunFailed(r), ByElement)
}

// Ended is the one place where an element ends (law O1). The driver calls it for the elements that Abandon returned, since what
// becomes of them is known later.
func (g *Machine[IN, OUT]) Ended(s *Slot[IN, OUT], how observe.EndKind) {
	for _, f := range g.ended {
		f(s, how)
	}
	switch how {
	case observe.Emitted, observe.Empty:
		g.state.Stats.Completed++
	case observe.HandedOver:
		g.state.Stats.HandedOver++
	case observe.Dropped:
		g.state.Stats.Dropped++
	case observe.Failed:
		g.state.Stats.Failed++
	case observe.Abandoned, observe.Kept:
		g.state.Stats.Abandoned++
	default: // Discarded: it was not accepted
	}
}

// report describes an element.
func (g *Machine[IN, OUT]) report(s *Slot[IN, OUT]) Report[IN] {
	r := Report[IN]{
		Element: s.in, Err: s.err, Attempts: int(s.attempts), Elapsed: g.now - s.accepted, NoRetryReason: s.noRetry,
		InDoubt: s.doubt != noDoubt, Deduplicated: s.doubt == deduplicated, Failed: s.phase == failing,
		Timeout: g.Timeout, Context: g.Host.Values,
	}
	if g.describe != nil {
		r.Context = g.describe(s)
	}
	of := g.reasons.get(s.place)
	r.Reason, r.Reasons = of.last, of.retried
	if s.isOdd {
		r.Timeout = g.limits.get(s.place).total
	}
	if s.attempts > 0 {
		r.First, r.Last = g.Timers.Time(s.first), g.Timers.Time(s.last)
	}
	return r
}

// ---- Results out

// Head returns what the head of the queue has to emit, results or a control element; neither, if its turn has not come. Elements
// that emit nothing leave here. The head stays until Left is called.
func (g *Machine[IN, OUT]) Head() (results []OUT, control any) {
	for {
		e := g.Queue.Head()
		if e == nil {
			return nil, nil
		}
		switch s := e.Value; s.phase {
		case controlElement:
			return nil, g.held.get(s.place)
		case done:
			if results = s.attempt.Results; len(results) > 0 {
				return results, nil
			}
		default: // it has failed
		}
		g.Left(observe.Empty)
	}
}

// Left removes the head of the queue, whose results, if it has some, ended so: the driver says Emitted.
func (g *Machine[IN, OUT]) Left(how observe.EndKind) {
	s := g.Queue.Head().Value
	if s.phase == done {
		g.Ended(s, how)
	}
	if s == g.oldest {
		g.oldest = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase != controlElement })
	}
	for _, f := range g.left {
		f()
	}
	g.Queue.Pop()
	g.slots.leave(s)
}

// Abandon ends the contexts of all attempts and returns the elements that have not ended, in input order (law A1). Ended is to be
// called for each.
func (g *Machine[IN, OUT]) Abandon() (cut []*Slot[IN, OUT]) {
	g.abandoned = true
	g.tick()
	for _, f := range g.cut {
		f()
	}
	judged, outcomeOfJudged := g.judgedLast(), g.outcome
	g.outcome = outcome{}
	for s := g.first(); s != nil; s = s.next() {
		if s == judged { // its attempt has ended
			g.outcome = outcomeOfJudged
		}
		switch s.phase {
		case controlElement, ended:
			continue
		case fresh, behind, backoff, ready:
		case preparing, running:
			if s == judged {
				break
			}
			end := g.endAttempt(s, s.attempt, cutOff)
			if s.phase == running {
				s.doubt = max(s.doubt, doubtOf(end.Deduplicated))
			}
			g.outcome = outcome{is: true, err: context.Canceled, took: g.now - s.last, timed: true}
		case done:
			if len(s.attempt.Results) == 0 {
				g.Ended(s, observe.Empty)
				continue
			}
			if s.attempts > 0 {
				s.doubt = notDeduplicated // that it has taken effect is not known to anybody else
			}
		default:
			if s != judged {
				g.on[s.phase].cut(s, false)
			}
		}
		g.follows(s, false, 0)
		cut = append(cut, s)
	}
	g.state.Stats.Deciding, g.state.Stats.WaitingForRetry, g.state.Stats.WaitingForKey = 0, 0, 0
	return cut
}

// judgedLast returns the element that the policy was judging when it ended the core's goroutine (law A6), if that has no successor.
func (g *Machine[IN, OUT]) judgedLast() *Slot[IN, OUT] {
	j := &g.judging
	if g.user.broke == nil || !j.is {
		return nil
	}
	if !j.isAnswered {
		g.user.slot.doubts(j.view.Reason, j.view.Stage, j.deduplicated)
	}
	return g.user.slot
}
