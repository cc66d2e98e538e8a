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

// User code that may block runs on workers while its element waits. See also handler.go,
// sink.go and batches.go.

// errTooManyTasks is the error of user code that does not run.
var errTooManyTasks = errors.New("asyncop: twice as many strategies, steps before a retry and handlers of failures are running as there are slots: " +
	"they ignore the ends of their contexts")

// runOnWorker runs work with ctx on a worker, and then calls onEnd with its error. The
// element of t may continue before work returns. Neither function is called if t has
// ended before the worker begins.
//
// If twice as many functions as slots are running, runOnWorker does not run work, and
// returns false.
func (g *Machine[IN, OUT]) runOnWorker(
	ctx context.Context, t *call.Token, work func(ctx context.Context) error, onEnd func(err error),
) bool {
	running := &g.Host.Tasks
	if running.Load() >= 2*int64(g.Queue.Cap()) { // only the loop adds
		return false
	}
	running.Add(1)
	g.Host.Run(func() {
		var err error
		isLate := t.Late() != nil
		defer func() { // even if work ends its goroutine
			running.Add(-1)
			if !isLate {
				onEnd(err)
			}
		}()
		if !isLate {
			var guarded guard.Guard
			defer guarded.Close(func(recovered any) { err = call.Panicked(recovered) })
			err = work(ctx)
			guarded.Returned()
		}
	})
	return true
}

// task is user code on a worker, for an element that waits for its letter. It is a
// question to a strategy, or a handler.
type task struct {
	call.Token
	isHandler bool  // it does not belong to an attempt, and a late letter counts as a late completion
	broken    error // panic or runtime.Goexit; written before the letter is posted
}

// runTask runs work for s on a worker. s must be in the phase of the task. runTask
// returns an error if work cannot run.
func (g *Machine[IN, OUT]) runTask(s *Slot[IN, OUT], t *task, deadline time.Duration, work func(ctx context.Context)) error {
	number := s.attempts
	if t.isHandler {
		number = 0
	}
	g.bind(s, &t.Token, number, deadline)
	started := g.runOnWorker(g.context(s, &t.Token), &t.Token,
		func(ctx context.Context) error { work(ctx); return nil },
		func(broken error) {
			t.broken = broken
			t.Finish(t.isHandler)
		})
	if !started {
		return errTooManyTasks
	}
	return nil
}

// ---- Strategies that may block

// question is a strategy that a worker asks. The element has no permit and no call, and
// its deadline holds (law A3).
type question[OUT any] struct {
	task
	view   predicates.Attempt[OUT]
	answer decision.Answer // written by the worker
	isFree bool            // see atBackend.report
	end    attemptEnd      // Machine.attemptEnd, meanwhile
}

// askOnWorker asks the strategy about the attempt in g.view. strategyAnswered continues.
func (g *Machine[IN, OUT]) askOnWorker(s *Slot[IN, OUT], isFree bool) {
	q := &question[OUT]{view: g.view, isFree: isFree, end: g.attemptEnd}
	g.view, g.attemptEnd = predicates.Attempt[OUT]{}, attemptEnd{}
	if !q.end.isTimed {
		q.end.took, q.end.isTimed = g.now-s.lastBegan, true
	}
	g.state.Stats.Deciding++
	g.enter(s, deciding)
	*g.questions.ref(s.index) = q
	policy := g.Policy
	err := g.runTask(s, &q.task, s.due, func(ctx context.Context) { q.answer = policy.Ask(ctx, &q.view) })
	if err != nil {
		q.broken = err
		g.strategyAnswered(s)
	}
}

// strategyAnswered continues after the worker has asked the strategy, or could not.
func (g *Machine[IN, OUT]) strategyAnswered(s *Slot[IN, OUT]) {
	q := g.takeQuestion(s)
	if q.broken != nil { // runtime.Goexit, or Ask did not run: Ask recovers panics
		q.answer.Err = q.broken
	}
	g.judgeAnswer(s, &q.view, q.answer, q.isFree)
}

// takeQuestion removes the question of s, and restores Machine.attemptEnd.
func (g *Machine[IN, OUT]) takeQuestion(s *Slot[IN, OUT]) *question[OUT] {
	q := g.questions.take(s.index)
	g.state.Stats.Deciding--
	g.attemptEnd = q.end
	return q
}

// ---- Steps before a retry

// prepare runs a step before the call of an attempt that has begun: a step of the
// strategy, or the wait for a lease. The attempt has its permit, and its timeouts hold.
// If the step fails, so does the attempt.
//
// The function is called after the step, by prepared. A member of a batch is an
// exception: its function is called now, so that it joins the batch, and the batch waits
// for the step. prepare reports whether the function is called now.
func (g *Machine[IN, OUT]) prepare(s *Slot[IN, OUT], a *call.Attempt[OUT], step retryStep) (continues bool) {
	a.EndInvoke() // the function is called later, so completions post letters
	isMember := g.forming != nil
	var succeeded chan struct{} // of a member; closed unless the step fails
	if isMember {
		succeeded = make(chan struct{})
		g.forming.WaitFor(succeeded) // at most until this member ends
	} else {
		g.enter(s, preparing)
	}
	onEnd := func(err error) {
		switch {
		case err != nil:
			a.Borrow() // like a borrowed outcome, it is not evidence about the backend
			a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err})
		case isMember:
			close(succeeded)
		default:
			a.Post()
		}
	}
	started := g.runOnWorker(g.context(s, &a.Token), &a.Token, step, onEnd)
	if !started {
		onEnd(errTooManyTasks)
	}
	return isMember
}

// prepared continues after the step before the call of s.
func (g *Machine[IN, OUT]) prepared(s *Slot[IN, OUT]) {
	if s.attempt.Completed() { // the step failed
		g.conclude(s, completed)
		return
	}
	g.readClock()
	g.EndIfCancelled() // the driver may not have noticed the cancel (law A5)
	if g.state.Failure != nil || g.now >= s.attempt.Until {
		return // the end of the run or a timer ends the attempt
	}
	g.enter(s, running)
	g.invoke(s, s.attempt)
}
