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
	open  bool // what follows from the last one is not known yet
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

// KeepWays adds the feature. The context of the failure sink has the way of its element, a []observe.Step, under [ctxkey.Way].
func KeepWays[IN, OUT any](g *Machine[IN, OUT], k WayKeeper[IN]) {
	w := &ways[IN, OUT]{WayKeeper: k, core: g, of: newSide[*way](g)}
	g.concluded = append(g.concluded, w.concluded)
	g.over = append(g.over, w.over)
	g.ended = append(g.ended, w.ended)
	g.wayOf = func(s *Slot[IN, OUT]) []observe.Step {
		if p := w.of.get(s.place); p != nil {
			return p.steps
		}
		return nil
	}
}

// concluded notes the outcome of an attempt, unless it is a success and the element has no way yet.
func (w *ways[IN, OUT]) concluded(s *Slot[IN, OUT], results int, err error) {
	p := w.of.get(s.place)
	if p == nil && err == nil || s.phase != running && s.phase != preparing || p != nil && p.open {
		return
	}
	w.note(s, p, results, err)
}

// note adds the attempt of s that has ended to its way, and returns that; nil if there are too many.
func (w *ways[IN, OUT]) note(s *Slot[IN, OUT], p *way, results int, err error) *way {
	g := w.core
	switch {
	case p == nil && w.live == liveWays:
		return nil
	case p == nil:
		w.live++
		p = new(way)
		*w.of.ref(s.place) = p
	case len(p.steps) == longestWay:
		p.steps = append(p.steps[:firstSteps], p.steps[firstSteps+1:]...)
	}
	g.refresh()
	p.open = true
	p.steps = append(p.steps, observe.Step{
		Outcome: observe.Outcome{Attempt: int(s.attempts), Results: results, Err: err, Duration: g.now - s.last},
		Begun:   g.Timers.Time(s.last),
	})
	return p
}

// over notes what follows from the attempt of s. If that is its end, and s was slow or asks for it, its way is kept.
func (w *ways[IN, OUT]) over(s *Slot[IN, OUT], again bool, delay time.Duration) {
	g, p, keep := w.core, w.of.get(s.place), false
	if !again && (s.phase == running || s.phase == deciding) {
		keep = s.due != Never && g.now-s.accepted > (s.due-s.accepted)/2 || w.Asked != nil && w.Asked(s.in)
	}
	if p == nil && (again || keep) { // it had a result
		results := 0
		if s.attempt != nil {
			all, _ := s.attempt.Outcome()
			results = len(all)
		}
		p = w.note(s, nil, results, nil)
	}
	if p == nil {
		return
	}
	p.keep = p.keep || keep
	if !p.open {
		return
	}
	p.open = false
	last := &p.steps[len(p.steps)-1]
	last.Reason, last.Retry, last.Delay = g.reasons.get(s.place).last, again, delay
	if w.Backend != nil {
		last.Backend = w.Backend()
	}
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
