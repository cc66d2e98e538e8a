package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// Bounds of the histories that are kept.
const (
	liveHistories = 512 // of elements in flight
	maxSteps      = 32  // of a history: the first and the last ones
	firstSteps    = 8
	keptHistories = 10 // that are passed on in keptPeriod
	keptPeriod    = time.Second
)

// TimelineKeeper decides which histories are kept.
type TimelineKeeper[IN any] struct {
	Asked   func(in IN) bool                                              // reports whether an element that succeeds at once has a history; nil if none has
	Backend func() string                                                 // returns the state of the backend; nil if there is none
	Keep    func(r Report[IN], how observe.EndKind, steps []observe.Step) // gets the history of an element that failed, was slow, or was asked for
}

// attemptHistory has the attempts of an element.
type attemptHistory struct {
	steps []observe.Step
	keep  bool // even if the element succeeds
}

// history keeps the attempts of elements. An element that succeeds at once has no
// history, and allocates nothing.
type history[IN, OUT any] struct {
	TimelineKeeper[IN]
	core   *Machine[IN, OUT]
	of     perSlot[*attemptHistory]
	live   int
	period time.Duration
	kept   int // in the period
}

// KeepTimelines adds histories. The context of the failure sink has the history of its
// element, a []observe.Step, under [ctxkey.Timeline].
func KeepTimelines[IN, OUT any](g *Machine[IN, OUT], k TimelineKeeper[IN]) {
	g.history = &history[IN, OUT]{TimelineKeeper: k, core: g, of: newPerSlot[*attemptHistory](g)}
}

// stepsOf returns the history of s, nil if it has none.
func (w *history[IN, OUT]) stepsOf(s *Slot[IN, OUT]) []observe.Step {
	if p := w.of.get(s.index); p != nil {
		return p.steps
	}
	return nil
}

// attemptEnded adds the end of an attempt to the history of s, unless s needs none. The
// history is kept if s is not retried and was slow, or asks for it.
func (w *history[IN, OUT]) attemptEnded(s *Slot[IN, OUT], o *attemptEnd, again bool, delay time.Duration) {
	g, p := w.core, w.of.get(s.index)
	if p != nil { // an element without a history does not justify a reading of the clock
		g.refresh()
	}
	keep := !again && (s.due != Never && g.now-s.due > -g.timeoutOf(s)/2 || w.Asked != nil && w.Asked(s.in))
	switch {
	case p == nil && (o.err == nil && !again && !keep || w.live == liveHistories):
		return
	case p == nil:
		w.live++
		p = new(attemptHistory)
		*w.of.ref(s.index) = p
	case len(p.steps) == maxSteps:
		p.steps = append(p.steps[:firstSteps], p.steps[firstSteps+1:]...)
	}
	p.keep = p.keep || keep
	if !o.isTimed {
		g.refresh()
		o.took = g.now - s.last
	}
	step := observe.Step{Begun: g.Timers.Time(s.last), Outcome: observe.Outcome{
		Attempt: int(s.attempts), Results: o.results, Err: o.err, Duration: o.took,
		Reason: g.reasons.get(s.index).last, Retry: again, Delay: delay,
	}}
	if w.Backend != nil {
		step.Backend = w.Backend()
	}
	p.steps = append(p.steps, step)
}

// ended passes on the history of s.
func (w *history[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	g, p := w.core, w.of.get(s.index)
	if p == nil {
		return
	}
	w.live--
	hasSucceeded := how == observe.Emitted || how == observe.Empty
	if hasSucceeded && !p.keep || how == observe.Kept {
		return
	}
	if g.now-w.period >= keptPeriod || w.kept == 0 {
		w.period, w.kept = g.now, 0
	}
	w.kept++
	if w.kept <= keptHistories {
		w.Keep(g.report(s), how, p.steps)
	}
}
