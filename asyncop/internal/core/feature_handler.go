package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Handler has results in place of failures, maybe. Its answer is final, for a retry would be one after the deadline or after the
// last (law A3).
type Handler[IN, OUT any] struct {
	Handle   func(ctx context.Context, r Report[IN], timedOut bool) ([]OUT, error) // returns what the element emits, or fails with
	All      bool                                                                  // failures of all kinds; else elements that have run out of time
	Limit    time.Duration                                                         // of a call of Handle
	ErrLimit error                                                                 // of one that exceeds it
	Broke    func(failure error, timedOut bool, broken error) error                // the failure of an element whose Handle broke
}

// HandleFailures adds the feature. Handle is called on a worker.
func HandleFailures[IN, OUT any](g *Machine[IN, OUT], handler Handler[IN, OUT]) {
	b := addBeside(g)
	g.rescue = func(s *Slot[IN, OUT], failure error, timedOut bool) (taken bool) {
		if !timedOut && !handler.All {
			return false
		}
		s.attempt = nil
		s.err = failure
		g.enter(s, handling)
		g.refresh() // its time begins now
		until := g.now + handler.Limit
		h := &call.Handling[OUT]{TimedOut: timedOut}
		g.hold(s, h)
		g.bind(s, &h.Token, 0, until)
		g.Timers.Arm(&s.timer, until)
		r, ctx := g.report(s), g.context(s, &h.Token)
		r.Failed = true
		b.run(&h.Token, func() {
			h.Run(func() ([]OUT, error) { return handler.Handle(ctx, r, timedOut) })
		})
		return true
	}
	g.on[handling].answered = func(s *Slot[IN, OUT]) {
		h := g.unhold(s).(*call.Handling[OUT])
		g.Timers.Cancel(&s.timer)
		results, err, panicked := h.Outcome()
		switch {
		case panicked:
			err = handler.Broke(s.err, h.TimedOut, err)
		case err == nil && g.Check != nil:
			err = g.Check(results)
		}
		if err != nil {
			g.giveUp(s, err)
			return
		}
		s.attempt = call.Completed(results)
		g.settle(s, nil)
	}
	g.on[handling].fired = func(s *Slot[IN, OUT]) {
		h := g.unhold(s).(*call.Handling[OUT])
		h.Expire()
		g.giveUp(s, handler.Broke(s.err, h.TimedOut, handler.ErrLimit))
	}
	g.on[handling].cut = func(s *Slot[IN, OUT], _ bool) { g.unhold(s).(*call.Handling[OUT]).Cut() }
}
