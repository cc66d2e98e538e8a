package engine

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
)

// The engine's way from an outcome to the next attempt:
//
//	outcome ─▶ judge ──────────────────────▶ decided ─▶ settle | fail | backOff ─▶ … ─▶ start ─▶ invoke
//	             │ the strategy may block       ▲                                        │         ▲
//	             └─▶ ask ─▶ (worker) ─▶ answer ─┘                   something to do first └▶ prepare┘

// judge shows an outcome to the policy. A strategy that does not block is asked here.
func (g *Engine[IN, OUT]) judge(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], failed error, timeout *timedOut,
) {
	if g.retry.whole || g.slow.kind != SlowInvoke || g.call.entry != e {
		g.tick()
		g.watch(e, SlowJudge)
	} else { // the watch goes on: AsyncInvoke has completed it
		g.slow.kind = SlowInvokeAndJudge
	}
	g.judged = failed
	var d decision.Decision
	g.calling(callJudge, e)
	ask := g.verdict(e, a, failed, timeout, &d)
	g.called()
	g.doubt(e)
	if ask {
		g.ask(e, failed)
		return
	}
	g.decided(e, failed, &d, nil)
}

// verdict shows an outcome to the policy, and asks a strategy that does not block. It writes the decision to d, unless the
// strategy is still to be asked.
func (g *Engine[IN, OUT]) verdict(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], failed error, timeout *timedOut,
	d *decision.Decision,
) (ask bool) {
	r := &g.retry
	g.look(e, a, failed, timeout)
	found, err := r.policy.Find(&r.view)
	if !found {
		d.Err = failed
		return false
	}
	if *d, ask = r.policy.Judge(&r.view, err, g.situation()); ask && r.atOnce {
		action, err := r.policy.Ask(g.contextOfJudge(e, a), &r.view)
		*d, ask = r.policy.Conclude(&r.view, action, err, g.situation()), false
	}
	return ask
}

// contextOfJudge returns the context of a strategy that is asked here, with the values that a question has. It ends with the operator.
func (g *Engine[IN, OUT]) contextOfJudge(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT],
) context.Context {
	if !g.retry.whole {
		return g.Host.Life
	}
	return call.WithEnd(g.contextBeside(&e.Value, &a.Token), g.Host.Life)
}

// doubt notes what the policy has found out about the outcome: the deadline of e may come next, or this is its end.
func (g *Engine[IN, OUT]) doubt(e *queue.Entry[Slot[IN, OUT]]) {
	e.Value.doubts(g.retry.view.Reason, g.retry.view.Stage, g.retry.tracked)
}

// look fills in the view, as far as the policy looks.
func (g *Engine[IN, OUT]) look(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], failed error, timeout *timedOut,
) {
	s, v := &e.Value, &g.retry.view
	v.Number, v.Err, v.Remaining = int(s.attempts), failed, g.remaining(e)
	v.Stage, v.InDoubt, g.retry.tracked = stageOf(a, timeout)
	if timeout == nil {
		v.Results = a.Results()
	} // else nil: see forget
	if !g.retry.whole {
		return
	}
	v.Input = s.in
	v.Values = g.contextOf(e, a)
	v.Reasons = s.reasons()
	v.Elapsed = g.now - s.accepted
	v.Idempotent = g.retry.policy.IsIdempotent(v.Input)
}

// remaining returns what e has left of its timeout.
func (g *Engine[IN, OUT]) remaining(e *queue.Entry[Slot[IN, OUT]]) time.Duration {
	due := g.deadline(e)
	if due == Never {
		return decision.NoDeadline
	}
	return max(0, due-g.now)
}

func (g *Engine[IN, OUT]) situation() decision.Situation {
	return decision.Situation{
		Finishing: g.noRetries, Waiting: int(g.counts.WaitingForRetry), Random: g.retry.random,
	}
}

// question is what a strategy that may block is asked on a worker. Its letter is the answer.
type question[IN, OUT any] struct {
	call.Token[*queue.Entry[Slot[IN, OUT]]]
	err  error                   // of the outcome
	view predicates.Attempt[OUT] // of the attempt

	// Written by the worker before it posts the letter.
	action decision.Action
	failed error
}

// put puts the question to the strategy, on a worker, unless it is late.
func (q *question[IN, OUT]) put(ctx context.Context, policy *decision.Steps[OUT], panicked func(recovered any) error) {
	if q.Late() != nil {
		return
	}
	defer q.Finish()
	var g guard.Guard
	defer g.Close(func(recovered any) { q.failed = panicked(recovered) }) // Ask itself recovers panics
	q.action, q.failed = policy.Ask(ctx, &q.view)
	g.Returned()
}

// ask puts the question to the strategy on a worker: it may block. Meanwhile e has neither permit nor call, and its
// deadline stands (law A3).
func (g *Engine[IN, OUT]) ask(e *queue.Entry[Slot[IN, OUT]], err error) {
	q := &question[IN, OUT]{err: err, view: g.retry.view}
	g.judged = nil
	g.retry.forget()
	q.Start(g.Host, e, e.Value.attempts, g.tokenDeadline(e))
	q.Carry(e.Value.message())
	e.Value.needExtra() // apart from what only the question needs
	e.Value.more().held = q
	g.enter(e, deciding)
	g.counts.Deciding++
	policy, panicked, ctx := g.retry.policy, g.Host.Panicked, g.contextBeside(&e.Value, &q.Token)
	g.runBeside(&g.asking, &q.Token, func() { q.put(ctx, policy, panicked) })
}

// answer goes on after the strategy has answered in time.
func (g *Engine[IN, OUT]) answer(e *queue.Entry[Slot[IN, OUT]], q *question[IN, OUT]) {
	q.Entry = nil
	g.counts.Deciding--
	g.tick()
	g.watch(e, SlowJudge)
	q.view.Remaining, q.view.Elapsed = g.remaining(e), g.now-e.Value.accepted
	g.judged = q.err
	g.calling(callConclude, e)
	d := g.retry.policy.Conclude(&q.view, q.action, q.failed, g.situation())
	g.called()
	g.decided(e, q.err, &d, nil)
}

// decided does what the policy has decided about an outcome with err. If it panicked, e ends with that (law A6).
func (g *Engine[IN, OUT]) decided(
	e *queue.Entry[Slot[IN, OUT]], err error, d *decision.Decision, panicked error,
) {
	g.retry.forget()
	g.judged = nil
	if g.retry.whole {
		e.Value.note(d.Reason)
	}
	if panicked != nil {
		g.fail(e, lazyerr.Join(panicked, err))
		return
	}
	s := &e.Value
	switch d.Verdict {
	case decision.Final:
		g.settle(e, d.Err)
	case decision.Retried:
		if d.Err != nil {
			s.err = d.Err
		}
		s.doFirst(d.Before)
		s.attempt = nil
		s.retry = kindOfRetry(err == nil, d.Demanded > 0)
		g.backOff(e, *d)
	case decision.Failed:
		s.verdict = d.Verdict
		g.notRetried(s, *d)
		g.fail(e, g.Hooks.DecisionFailed(d.Err))
	default:
		s.verdict = d.Verdict
		g.counts.Exhausted++
		switch d.Verdict {
		case decision.Finishing:
			g.counts.CutByEndOfInput++
		case decision.OverBudget:
			g.counts.OverBudget++
		case decision.TooManyWaiting:
			g.counts.TooManyWaiting++
		default: // Refused
		}
		g.notRetried(s, *d)
		if d.Err == nil && g.ExhaustedAsFailure {
			d.Err = g.Hooks.Exhausted(*d)
		}
		g.settle(e, d.Err)
	}
}

// notRetried notes that there was a reason for a retry, and no retry.
func (g *Engine[IN, OUT]) notRetried(s *Slot[IN, OUT], d decision.Decision) {
	if g.Hooks.LogsRetries() {
		g.Hooks.NotRetried(g.report(s), d)
	}
}

// backOff lets e wait for its next attempt. One whose retry could not start before its deadline waits for the deadline, or
// times out early by choice.
func (g *Engine[IN, OUT]) backOff(e *queue.Entry[Slot[IN, OUT]], d decision.Decision) {
	g.tick()
	s := &e.Value
	g.enter(e, backoff)
	g.counts.WaitingForRetry++
	due := g.deadline(e)
	tooLate := due != Never && d.Delay >= due-g.now // capped, or it would be now
	if tooLate {
		g.attemptOver(s, false, 0)
	} else {
		g.attemptOver(s, true, d.Delay)
	}
	switch {
	case !g.Hooks.LogsRetries():
	case tooLate:
		g.Hooks.NotRetried(g.report(s), d)
	default:
		g.Hooks.Retrying(g.report(s), d)
	}
	switch {
	case tooLate && g.EarlyTimeout:
		g.timeOut(e)
	case d.Delay == 0 && !tooLate:
		g.retryNow(e)
	default: // a timer that is due at the deadline or later never fires: deadlines come first
		g.Timers.Arm(&s.timer, later(g.now, max(d.Delay, d.Demanded)))
	}
}

// later returns the instant d after at, or the last one there is.
func later(at, d time.Duration) time.Duration {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

// prepare begins the attempt a with what the strategy wants done first, on a worker. The attempt has its permit, and its
// timeouts stand. If that fails, it is the attempt's outcome, and nothing has been sent.
func (g *Engine[IN, OUT]) prepare(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], before func(ctx context.Context) error,
) {
	g.enter(e, preparing)
	ctx := g.contextBeside(&e.Value, &a.Token)
	g.runBeside(&g.before, &a.Token, func() {
		if g.doBefore(ctx, a, before) {
			a.Post()
		}
	})
}

// doBefore does what the strategy wants done before the attempt a, on a worker, and reports whether the call may follow.
func (g *Engine[IN, OUT]) doBefore(
	ctx context.Context, a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], before func(ctx context.Context) error,
) bool {
	if a.Late() != nil {
		return false
	}
	refuse := func(err error) { a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err}) }
	var stands guard.Guard
	defer stands.Close(func(recovered any) { refuse(g.Host.Panicked(recovered)) })
	err := before(ctx)
	stands.Returned()
	if err != nil {
		refuse(err)
	}
	return err == nil
}

// prepared makes the call, after what was to be done first.
func (g *Engine[IN, OUT]) prepared(e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT]) {
	g.tick()
	g.EndIfCancelled() // now, not when the driver looks (law A5)
	switch deadline := a.DeadlineAt(); {
	case g.failure != nil:
	case deadline != call.NoDeadline && g.now >= deadline: // its timeout is due, too
	default:
		g.invoke(e, a)
	}
}
