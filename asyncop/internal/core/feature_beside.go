package core

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// beside bounds one kind of user code that runs on workers and that its element may leave behind there: strategies that may
// block, what they want done before a retry, handlers of failures. What ignores the end of its context counts until it returns.
// As many as there are slots may run; what comes then waits for its turn, and the deadlines of its elements stand.
type beside[IN, OUT any] struct {
	core    *Machine[IN, OUT]
	running int                 // the core's
	waiting fifo.Queue[waiting] // the core's; those whose turn is over are skipped

	returned atomic.Int64 // those that have, and that the core has not seen yet
}

// waiting is a task that waits until it may run.
type waiting struct {
	ref  call.Ref
	task func()
}

// addBeside returns a bound for one kind of user code.
func addBeside[IN, OUT any](g *Machine[IN, OUT]) *beside[IN, OUT] {
	b := &beside[IN, OUT]{core: g}
	g.turnBegins = append(g.turnBegins, b.runWaiting)
	g.isBusy = append(g.isBusy, func() bool { return b.returned.Load() > 0 })
	g.forget = append(g.forget, func() { b.waiting = fifo.Queue[waiting]{} })
	g.waitingBeside = append(g.waitingBeside, b.waiting.Len)
	return b
}

// run has a task done on a worker when its turn has come, unless its token is over by then. The task looks itself whether
// it is late.
func (b *beside[IN, OUT]) run(token *call.Token, task func()) {
	g := b.core
	run := func() {
		defer func() { // also if the task ends its goroutine
			b.returned.Add(1)
			g.Host.WakeUp()
		}()
		task()
	}
	if b.running < g.Queue.Cap() {
		b.running++
		g.Host.Run(run)
		return
	}
	if b.waiting.Len() >= 2*g.Queue.Cap() { // most of them are over, since each of the others has a slot
		for n := b.waiting.Len(); n > 0; n-- {
			if old := b.waiting.Pop(); g.slots.find(old.ref) != nil {
				b.waiting.Push(old)
			}
		}
	}
	b.waiting.Push(waiting{token.Ref, run})
}

// runWaiting runs those whose turn has come because others have returned.
func (b *beside[IN, OUT]) runWaiting() (ends bool) {
	if b.returned.Load() == 0 {
		return false
	}
	b.running -= int(b.returned.Swap(0))
	for b.running < b.core.Queue.Cap() && b.waiting.Len() > 0 {
		if w := b.waiting.Pop(); b.core.slots.find(w.ref) != nil {
			b.running++
			b.core.Host.Run(w.task)
		}
	}
	return false
}

// ---- Strategies that may block

// errand is user code that a worker runs for an element, which waits for it: a strategy, or a handler of its failure. Its letter says that
// it has returned.
type errand struct {
	call.Token
	broke error // written by the worker before it posts the letter
	then  func(broke error)
}

// addErrands says what ends the phase p, in which elements wait for errands. errLimit is how one breaks that the timer of its element ends.
func addErrands[IN, OUT any](g *Machine[IN, OUT], p phase, errLimit error) {
	g.on[p].answered = func(s *Slot[IN, OUT]) {
		e := g.unhold(s).(*errand)
		e.then(e.broke)
	}
	g.on[p].fired = func(s *Slot[IN, OUT]) {
		e := g.unhold(s).(*errand)
		e.Expire()
		e.then(errLimit)
	}
	g.on[p].cut = func(s *Slot[IN, OUT], late bool) {
		if e := g.unhold(s).(*errand); late {
			e.Expire()
		} else {
			e.Cut()
		}
	}
}

// send has do run for s, which waits in the phase p for that, until an instant at most: unless that is over by then. Then goes on after do has
// returned or broken.
func (b *beside[IN, OUT]) send(
	s *Slot[IN, OUT], p phase, number int32, until time.Duration, do func(ctx context.Context), then func(broke error),
) {
	g, e := b.core, &errand{then: then}
	g.enter(s, p)
	*g.held.ref(s.place) = e
	g.bind(s, &e.Token, number, until)
	ctx := g.context(s, &e.Token)
	b.run(&e.Token, func() {
		if e.Late() != nil {
			return
		}
		defer e.Finish(p == handling)
		var stands guard.Guard
		defer stands.Close(func(recovered any) { e.broke = call.Panicked(recovered) })
		do(ctx)
		stands.Returned()
	})
}

// AskBeside adds a feature: strategies that may block are asked on a worker. Meanwhile an element has neither permit nor call,
// and its deadline holds (law A3).
func AskBeside[IN, OUT any](g *Machine[IN, OUT]) {
	b := addBeside(g)
	addErrands(g, deciding, nil)
	g.situation.Beside = true
	g.ask = func(s *Slot[IN, OUT], err error) {
		policy, view, outage := g.Policy, g.judging.view, g.judging.outage
		var answer decision.Answer
		g.judging = judging[OUT]{}
		g.state.Stats.Deciding++
		b.send(s, deciding, s.attempts, s.due, func(ctx context.Context) { answer = policy.Ask(ctx, &view) }, func(broke error) {
			if broke != nil { // it has ended its goroutine: Ask itself recovers panics
				answer.Err = broke
			}
			g.state.Stats.Deciding--
			g.judging = judging[OUT]{is: true, isAnswered: true, outcome: err, outage: outage}
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
	b := addBeside(g)
	g.prepare = func(s *Slot[IN, OUT], a *call.Attempt[OUT], before func(ctx context.Context) error) (goesOn bool) {
		ctx := g.context(s, &a.Token)
		if done := g.calledAfter; done != nil {
			closed := make(chan struct{})
			done(closed)
			b.run(&a.Token, func() {
				defer close(closed)
				doBefore(ctx, a, before)
			})
			return true
		}
		g.enter(s, preparing)
		b.run(&a.Token, func() {
			if doBefore(ctx, a, before) {
				a.Post()
			}
		})
		return false
	}
	g.on[preparing].fired = g.attemptTimeOut
	g.on[preparing].answered = func(s *Slot[IN, OUT]) {
		if s.attempt.Completed() {
			g.completed(s)
			return
		}
		g.tick()
		g.endIfCancelled()                                            // now, not when the driver looks (law A5)
		if g.state.Failure == nil && g.now < s.attempt.DeadlineAt() { // else its timeout is due, too
			g.enter(s, running)
			g.invoke(s, s.attempt)
		}
	}
}

// doBefore does what the strategy wants done before the attempt a, on a worker, and reports whether the call may follow.
func doBefore[OUT any](ctx context.Context, a *call.Attempt[OUT], before func(ctx context.Context) error) bool {
	if a.Late() != nil {
		return false
	}
	refuse := func(err error) { a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err}) }
	var stands guard.Guard
	defer stands.Close(func(recovered any) { refuse(call.Panicked(recovered)) })
	err := before(ctx)
	stands.Returned()
	if err != nil {
		refuse(err)
	}
	return err == nil
}
