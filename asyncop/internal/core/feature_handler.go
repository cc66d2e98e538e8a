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
	addErrands(g, handling, handler.ErrLimit)
	g.rescue = func(s *Slot[IN, OUT], failure error, timedOut bool) (taken bool) {
		if !timedOut && !handler.All {
			return false
		}
		s.attempt = nil
		s.err = failure
		g.refresh() // its time begins now
		until := g.now + handler.Limit
		r := g.report(s)
		r.Failed = true
		g.enter(s, handling)
		g.Timers.Arm(&s.timer, until)
		var results []OUT
		var err error
		g.send(s, 0, until, func(ctx context.Context) error { results, err = handler.Handle(ctx, r, timedOut); return nil }, func(broke error) {
			g.Timers.Cancel(&s.timer)
			if broke != nil { // results may be being written
				g.giveUp(s, handler.Broke(failure, timedOut, broke))
				return
			}
			if err == nil && g.Check != nil {
				err = g.Check(results)
			}
			if err != nil {
				g.giveUp(s, err)
				return
			}
			s.attempt = &call.Attempt[OUT]{Results: results}
			g.settle(s, nil)
		})
		return true
	}
}
