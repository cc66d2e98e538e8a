package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Handling configures calls of User.HandleFailure.
type Handling struct {
	All      bool          // for all failures; otherwise only for timeouts
	Limit    time.Duration // of a call
	ErrLimit error         // of a call that exceeds Limit
}

// handler gets results in place of failures. Its answer is final (law A3).
type handler[IN, OUT any] struct {
	Handling
	core *Machine[IN, OUT]
}

type handlerCall[OUT any] struct {
	task
	failure  error
	timedOut bool

	// Written by the worker.
	results []OUT
	err     error
}

// rescue calls the handler for s, which has failed. returned or exceeded continues.
func (h *handler[IN, OUT]) rescue(s *Slot[IN, OUT], failure error, timedOut bool) {
	g := h.core
	s.attempt = nil
	s.err = failure
	g.refresh() // for the limit
	deadline := g.now + h.Limit
	r := g.report(s)
	g.enter(s, handling)
	g.Timers.Arm(&s.timer, deadline)
	c := &handlerCall[OUT]{failure: failure, timedOut: timedOut}
	c.isHandler = true
	*g.handlerCalls.ref(s.index) = c
	err := g.runTask(s, &c.task, deadline, func(ctx context.Context) {
		c.results, c.err = g.User.HandleFailure(ctx, r, timedOut)
	})
	if err != nil {
		c.broken = err
		h.returned(s)
	}
}

// returned continues after the handler of s has ended, or could not run.
func (h *handler[IN, OUT]) returned(s *Slot[IN, OUT]) {
	c := h.core.handlerCalls.take(s.index)
	h.finish(s, c, c.broken)
}

// exceeded continues after the handler of s has exceeded its limit. It may still run.
func (h *handler[IN, OUT]) exceeded(s *Slot[IN, OUT]) {
	c := h.core.handlerCalls.take(s.index)
	c.Expire()
	h.finish(s, c, h.ErrLimit)
}

// finish ends s with the answer of its handler. If broken is not nil, s fails. Then the
// answer is not read, because a late handler may be writing it.
func (h *handler[IN, OUT]) finish(s *Slot[IN, OUT], c *handlerCall[OUT], broken error) {
	g := h.core
	g.Timers.Cancel(&s.timer)
	if broken != nil {
		g.giveUp(s, g.User.HandlerError(c.failure, c.timedOut, broken))
		return
	}
	err := c.err
	if err == nil && g.ChecksResults {
		err = g.User.CheckResults(c.results)
	}
	if err != nil {
		g.giveUp(s, err)
		return
	}
	s.attempt = &call.Attempt[OUT]{Results: c.results}
	g.state.Stats.Rescued++
	g.endElement(s, nil)
}
