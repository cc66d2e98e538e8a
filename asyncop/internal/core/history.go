package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

const (
	liveHistories = 512 // at most, of elements in flight
	maxSteps      = 32  // in a history: the first firstSteps attempts and the last ones
	firstSteps    = 8
	keptHistories = 10 // at most, of elements that ended in a keptPeriod
	keptPeriod    = time.Second
)

// attemptHistory is the history of an element.
type attemptHistory struct {
	steps []observe.Step // one for each attempt
	keep  bool           // even if the element succeeds
}

// history keeps the attempts of elements that did not succeed at once, were slow, or were
// asked for (User.AsksForTimeline). The failure sink finds the steps in its context under
// [ctxkey.Timeline].
type history[IN, OUT any] struct {
	core          *Machine[IN, OUT]
	attempts      perSlot[*attemptHistory]
	live          int           // histories of elements in flight
	period        time.Duration // start of the period
	endedInPeriod int           // histories worth keeping, of which only the first keptHistories are kept; 0 before the first period
}

func (w *history[IN, OUT]) stepsOf(s *Slot[IN, OUT]) []observe.Step {
	if p := w.attempts.get(s.index); p != nil {
		return p.steps
	}
	return nil
}

// attemptEnded adds an attempt to the history of s, if s needs one.
func (w *history[IN, OUT]) attemptEnded(s *Slot[IN, OUT], o *attemptEnd) {
	g, p := w.core, w.attempts.get(s.index)
	if p != nil { // without a history, a reading of the clock is too expensive
		g.refresh()
	}
	keep := false
	if !o.isRetried {
		isSlow := g.isHurried(s, g.now) // it has used half of its timeout
		keep = isSlow || g.AsksForTimelines && g.User.AsksForTimeline(s.in)
	}
	isNeeded := o.err != nil || o.isRetried || keep
	switch {
	case p == nil && (!isNeeded || w.live == liveHistories):
		return
	case p == nil:
		g.refresh()
		w.live++
		p = new(attemptHistory)
		*w.attempts.ref(s.index) = p
	case len(p.steps) == maxSteps:
		p.steps = append(p.steps[:firstSteps], p.steps[firstSteps+1:]...)
	}
	p.keep = p.keep || keep
	if !o.isTimed {
		o.took = g.now - s.lastBegan
	}
	step := observe.Step{Begun: g.Timers.Time(s.lastBegan), Outcome: observe.Outcome{
		Attempt: int(s.attempts), Results: o.results, Err: o.err, Duration: o.took,
		Reason: g.reasons.get(s.index).last, Retry: o.isRetried, Delay: o.delay,
	}}
	if g.Host.Backend != nil {
		step.Backend = g.Host.Backend.Report().State
	}
	p.steps = append(p.steps, step)
}

// ended removes the history of s, and gives it to the user if it is worth keeping.
func (w *history[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	g, p := w.core, w.attempts.get(s.index)
	if p == nil {
		return
	}
	w.live--
	hasSucceeded := how == observe.Emitted || how == observe.Empty
	if hasSucceeded && !p.keep || how == observe.Kept {
		return
	}
	if g.now-w.period >= keptPeriod || w.endedInPeriod == 0 {
		w.period, w.endedInPeriod = g.now, 0
	}
	w.endedInPeriod++
	if w.endedInPeriod <= keptHistories {
		g.User.KeepTimeline(g.report(s), how, p.steps)
	}
}
