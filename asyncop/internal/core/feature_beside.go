package core

import (
	"context"
	"sync/atomic"

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

// question is what a strategy that may block is asked on a worker. Its letter is the answer.
type question[OUT any] struct {
	call.Token
	err    error                   // of the outcome
	outage bool                    // the attempt met one
	view   predicates.Attempt[OUT] // of the attempt

	answer decision.Answer // written by the worker before it posts the letter
}

// put puts the question to the strategy, on a worker, unless it is late.
func (q *question[OUT]) put(ctx context.Context, policy *decision.Steps[OUT], panicked func(recovered any) error) {
	if q.Late() != nil {
		return
	}
	defer q.Finish()
	var g guard.Guard
	defer g.Close(func(recovered any) { q.answer.Err = panicked(recovered) }) // Ask itself recovers panics
	q.answer = policy.Ask(ctx, &q.view)
	g.Returned()
}

// AskBeside adds a feature: strategies that may block are asked on a worker. Meanwhile an element has neither permit nor call,
// and its deadline holds (law A3).
func AskBeside[IN, OUT any](g *Machine[IN, OUT]) {
	b := addBeside(g)
	g.situation.Beside = true
	g.ask = func(s *Slot[IN, OUT], err error) {
		q := &question[OUT]{err: err, outage: g.judging.outage, view: g.judging.view}
		g.judging = judging[OUT]{}
		g.enter(s, deciding)
		g.hold(s, q)
		g.bind(s, &q.Token, s.attempts, s.due)
		g.state.Stats.Deciding++
		policy, panicked, ctx := g.Policy, g.Host.Panicked, g.context(s, &q.Token)
		b.run(&q.Token, func() { q.put(ctx, policy, panicked) })
	}
	g.on[deciding].answered = func(s *Slot[IN, OUT]) {
		q := g.unhold(s).(*question[OUT])
		g.state.Stats.Deciding--
		g.judging = judging[OUT]{is: true, isAnswered: true, outcome: q.err, outage: q.outage}
		g.decide(s, &q.view, &q.answer)
	}
	g.on[deciding].cut = func(s *Slot[IN, OUT], late bool) {
		g.state.Stats.Deciding--
		if q := g.unhold(s).(*question[OUT]); late {
			q.Expire()
		} else {
			q.Cut()
		}
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
				doBefore(ctx, a, before, g.Host.Panicked)
			})
			return true
		}
		g.enter(s, preparing)
		b.run(&a.Token, func() {
			if doBefore(ctx, a, before, g.Host.Panicked) {
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
func doBefore[OUT any](
	ctx context.Context, a *call.Attempt[OUT], before func(ctx context.Context) error, panicked func(recovered any) error,
) bool {
	if a.Late() != nil {
		return false
	}
	refuse := func(err error) { a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err}) }
	var stands guard.Guard
	defer stands.Close(func(recovered any) { refuse(panicked(recovered)) })
	err := before(ctx)
	stands.Returned()
	if err != nil {
		refuse(err)
	}
	return err == nil
}
