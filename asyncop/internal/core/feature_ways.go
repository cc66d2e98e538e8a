package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// Bounds of what is kept of ways.
const (
	liveWays   = 512 // of elements in flight
	longestWay = 32  // steps: the first ones and the last ones
	firstSteps = 8
	keptWays   = 10 // that are passed on in keptPeriod
	keptPeriod = time.Second
)

// WayKeeper is what ways are for.
type WayKeeper[IN any] struct {
	Asked   func(in IN) bool                                            // an element has a way although it has succeeded at once; nil: none has
	Backend func() string                                               // how the backend is; nil: there is none
	Keep    func(r Report[IN], how observe.EndKind, way []observe.Step) // how an element has ended that failed, was slow or was asked for
}

// way is what became of the attempts of an element.
type way struct {
	steps []observe.Step
	keep  bool // although the element may have succeeded
}

// ways hooks in where an attempt is over. An element that succeeds at once has no way, and allocates nothing.
type ways[IN, OUT any] struct {
	WayKeeper[IN]
	core   *Machine[IN, OUT]
	of     side[*way]
	live   int
	period time.Duration
	kept   int // in the period
}

// KeepWays adds the feature. The context of the failure sink has the timeline of its element, a []observe.Step, under [ctxkey.Timeline].
func KeepWays[IN, OUT any](g *Machine[IN, OUT], k WayKeeper[IN]) {
	w := &ways[IN, OUT]{WayKeeper: k, core: g, of: newSide[*way](g)}
	g.over = append(g.over, w.over)
	g.ended = append(g.ended, w.ended)
	g.wayOf = func(s *Slot[IN, OUT]) []observe.Step {
		if p := w.of.get(s.place); p != nil {
			return p.steps
		}
		return nil
	}
}

// over notes the outcome of an attempt and what follows, unless the element has no way and needs none. If nothing follows, and s was slow
// or asks for it, its way is kept.
func (w *ways[IN, OUT]) over(s *Slot[IN, OUT], o *outcome, again bool, delay time.Duration) {
	g, p := w.core, w.of.get(s.place)
	if p != nil { // an element without a way need not be worth a reading of the clock
		g.refresh()
	}
	keep := !again && (s.due != Never && g.now-s.accepted > (s.due-s.accepted)/2 || w.Asked != nil && w.Asked(s.in))
	switch {
	case p == nil && (o.err == nil && !again && !keep || w.live == liveWays):
		return
	case p == nil:
		w.live++
		p = new(way)
		*w.of.ref(s.place) = p
	case len(p.steps) == longestWay:
		p.steps = append(p.steps[:firstSteps], p.steps[firstSteps+1:]...)
	}
	p.keep = p.keep || keep
	if !o.timed {
		g.refresh()
		o.took = g.now - s.last
	}
	step := observe.Step{Begun: g.Timers.Time(s.last), Outcome: observe.Outcome{
		Attempt: int(s.attempts), Results: o.results, Err: o.err, Duration: o.took,
		Reason: g.reasons.get(s.place).last, Retry: again, Delay: delay,
	}}
	if w.Backend != nil {
		step.Backend = w.Backend()
	}
	p.steps = append(p.steps, step)
}

// ended passes on the way of s.
func (w *ways[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	g, p := w.core, w.of.get(s.place)
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
	if w.kept++; w.kept <= keptWays {
		w.Keep(g.report(s), how, p.steps)
	}
}
