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
	asked bool
	slow  bool // an attempt took more than half of the timeout, or the element did
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

// concluded notes the outcome of an attempt, unless it is a success at once.
func (w *ways[IN, OUT]) concluded(s *Slot[IN, OUT], results int, err error) {
	g, p := w.core, w.of.get(s.place)
	if s.phase != running && s.phase != preparing || p != nil && p.open {
		return
	}
	if p == nil && err == nil && !w.isSlow(s, s.last) {
		if w.Asked == nil || !w.Asked(s.in) {
			return
		}
		if p = w.newWay(s); p != nil {
			p.asked = true
		}
	}
	if p == nil {
		if p = w.newWay(s); p == nil {
			return
		}
	}
	g.refresh()
	w.note(s, p, results, err)
}

// isSlow reports whether more than half of the timeout of s has passed since an instant, as the loop knows it.
func (w *ways[IN, OUT]) isSlow(s *Slot[IN, OUT], since time.Duration) bool {
	return s.due != Never && w.core.now-since > (s.due-s.accepted)/2
}

// newWay gives s a way, or returns nil if there are too many.
func (w *ways[IN, OUT]) newWay(s *Slot[IN, OUT]) *way {
	if w.live == liveWays {
		return nil
	}
	w.live++
	p := new(way)
	w.of.set(s.place, p)
	return p
}

// note adds the attempt of s that has ended.
func (w *ways[IN, OUT]) note(s *Slot[IN, OUT], p *way, results int, err error) {
	g := w.core
	if len(p.steps) == longestWay {
		p.steps = append(p.steps[:firstSteps], p.steps[firstSteps+1:]...)
	}
	p.open = true
	p.steps = append(p.steps, observe.Step{
		Outcome: observe.Outcome{Attempt: int(s.attempts), Results: results, Err: err, Duration: g.now - s.last},
		Begun:   g.Timers.Time(s.last),
	})
}

// over notes what follows from the attempt of s.
func (w *ways[IN, OUT]) over(s *Slot[IN, OUT], again bool, delay time.Duration) {
	p := w.of.get(s.place)
	if p == nil && again { // it had no result
		if p = w.newWay(s); p != nil {
			w.note(s, p, 0, nil)
		}
	}
	if p == nil {
		return
	}
	p.slow = p.slow || w.isSlow(s, s.accepted)
	if !p.open {
		return
	}
	p.open = false
	last := &p.steps[len(p.steps)-1]
	last.Reason, last.Retry, last.Delay = w.core.lastReason(s), again, delay
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
	if hasSucceeded && !p.slow && !p.asked || how == observe.Kept {
		return
	}
	if g.now-w.period >= keptPeriod || w.kept == 0 {
		w.period, w.kept = g.now, 0
	}
	if w.kept++; w.kept <= keptWays {
		w.Keep(g.report(s), how, p.steps)
	}
}
