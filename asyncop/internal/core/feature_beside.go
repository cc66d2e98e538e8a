package core

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// errTooMany is how user code breaks that is not run.
var errTooMany = errors.New("asyncop: twice as many strategies, steps before a retry and handlers of failures are running as there are slots: " +
	"they ignore the ends of their contexts")

// beside has do run on a worker, with ctx, for what waits for t, unless that is late by then; then gets how it has ended. Its element may
// leave do behind there. What ignores the end of its context counts until it returns: if twice as many as there are slots run, beside
// returns false.
func (g *Machine[IN, OUT]) beside(
	ctx context.Context, t *call.Token, do func(ctx context.Context) error, then func(err error),
) bool {
	running := &g.Host.Beside
	if running.Load() >= 2*int64(g.Queue.Cap()) { // only the loop adds
		return false
	}
	running.Add(1)
	g.Host.Run(func() {
		var err error
		isLate := t.Late() != nil
		defer func() { // also if do ends its goroutine
			if running.Add(-1); !isLate {
				then(err)
			}
		}()
		if !isLate {
			var stands guard.Guard
			defer stands.Close(func(recovered any) { err = call.Panicked(recovered) })
			err = do(ctx)
			stands.Returned()
		}
	})
	return true
}

// ---- Strategies that may block

// errand is user code that a worker runs for an element, which waits for it: a strategy, or a handler of its failure. Its letter says that
// it has returned.
type errand struct {
	call.Token
	outcome outcome // of the attempt that a strategy is asked about
	broke   error   // written by the worker before it posts the letter
	then    func(broke error)
}

// addErrands says what ends the phase p, in which elements wait for errands. errLimit is how one breaks that the timer of its element ends.
func addErrands[IN, OUT any](g *Machine[IN, OUT], p phase, errLimit error) {
	g.on[p].answered = func(s *Slot[IN, OUT]) {
		e := g.returned(s)
		e.then(e.broke)
	}
	g.on[p].fired = func(s *Slot[IN, OUT]) {
		e := g.returned(s)
		e.Expire()
		e.then(errLimit)
	}
	g.on[p].cut = func(s *Slot[IN, OUT], late bool) {
		if e := g.returned(s); late {
			e.Expire()
		} else {
			e.Cut()
		}
	}
}

// returned returns the errand that s has waited for.
func (g *Machine[IN, OUT]) returned(s *Slot[IN, OUT]) *errand {
	e := g.unhold(s).(*errand)
	g.outcome = e.outcome
	return e
}

// send has do run for s, which waits for that in its phase, until an instant at most. Then goes on after do has returned or broken.
func (g *Machine[IN, OUT]) send(
	s *Slot[IN, OUT], number int32, until time.Duration, do func(ctx context.Context) error, then func(broke error),
) {
	e, completes := &errand{then: then, outcome: g.outcome}, s.phase == handling
	if g.outcome = (outcome{}); !e.outcome.timed {
		e.outcome.took, e.outcome.timed = g.now-s.last, true
	}
	*g.held.ref(s.place) = e
	g.bind(s, &e.Token, number, until)
	if !g.beside(g.context(s, &e.Token), &e.Token, do, func(broke error) {
		e.broke = broke
		e.Finish(completes)
	}) {
		g.returned(s).then(errTooMany)
	}
}

// AskBeside adds a feature: strategies that may block are asked on a worker. Meanwhile an element has neither permit nor call,
// and its deadline holds (law A3).
func AskBeside[IN, OUT any](g *Machine[IN, OUT]) {
	addErrands(g, deciding, nil)
	g.situation.Beside = true
	g.ask = func(s *Slot[IN, OUT]) {
		policy, view, outage := g.Policy, g.judging.view, g.judging.outage
		var answer decision.Answer
		g.judging = judging[OUT]{}
		g.state.Stats.Deciding++
		g.enter(s, deciding)
		g.send(s, s.attempts, s.due, func(ctx context.Context) error { answer = policy.Ask(ctx, &view); return nil }, func(broke error) {
			if broke != nil { // it has ended its goroutine: Ask itself recovers panics
				answer.Err = broke
			}
			g.state.Stats.Deciding--
			g.judging = judging[OUT]{is: true, isAnswered: true, outage: outage}
			g.decide(s, &view, &answer)
		})
	}
	cut := g.on[deciding].cut
	g.on[deciding].cut = func(s *Slot[IN, OUT], late bool) {
		g.state.Stats.Deciding--
		cut(s, late)
	}
}

// ---- Retries with something to do first

// PrepareBeside adds a feature: what a strategy wants done before an attempt is done on a worker. The attempt has its permit, and
// its timeouts hold. If that fails, it is the attempt's outcome, and nothing has been sent.
func PrepareBeside[IN, OUT any](g *Machine[IN, OUT]) {
	g.prepare = func(s *Slot[IN, OUT], a *call.Attempt[OUT], before func(ctx context.Context) error) (goesOn bool) {
		a.Leave()
		var called chan struct{} // nil: the call is for this element alone
		then := func(err error) {
			switch {
			case err != nil:
				a.Borrow() // nothing was called
				a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err})
			case called != nil:
				close(called)
			default:
				a.Post()
			}
		}
		if g.calledAfter != nil { // no longer than until this element is over
			called = make(chan struct{})
			g.calledAfter(called)
		} else {
			g.enter(s, preparing)
		}
		if !g.beside(g.context(s, &a.Token), &a.Token, before, then) {
			then(errTooMany)
		}
		return called != nil
	}
	g.on[preparing].fired = func(s *Slot[IN, OUT]) { g.conclude(s, ranOut) }
	g.on[preparing].answered = func(s *Slot[IN, OUT]) {
		if s.attempt.Completed() {
			g.conclude(s, completion)
			return
		}
		g.tick()
		g.endIfCancelled()                                     // now, not when the driver looks (law A5)
		if g.state.Failure == nil && g.now < s.attempt.Until { // else its timeout is due, too
			g.enter(s, running)
			g.invoke(s, s.attempt)
		}
	}
}
