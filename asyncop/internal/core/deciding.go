package core

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
)

// The core's way from an outcome to the next attempt:
//
//	outcome ─▶ judge ──────────────────────▶ decided ─▶ settle | fail | backOff ─▶ … ─▶ start ─▶ invoke
//	             │ the strategy may block       ▲                                        │         ▲
//	             └─▶ ask ─▶ (worker) ─▶ answer ─┘                   something to do first └▶ prepare┘

// judge shows an outcome to the policy. A strategy that does not block is asked here.
func (g *Machine[IN, OUT]) judge(
	s *Slot[IN, OUT], a *call.Attempt[OUT], failed error, timeout *timedOut,
) {
	if g.retry.whole {
		g.tick()
	} else {
		g.refresh()
	}
	g.judged = failed
	var d decision.Decision
	g.calling(callJudge, s)
	ask := g.verdict(s, a, failed, timeout, &d)
	g.called()
	g.doubt(s)
	if ask {
		g.ask(s, failed)
		return
	}
	g.decided(s, failed, &d, nil)
}

// verdict shows an outcome to the policy, and asks a strategy that does not block. It writes the decision to d, unless the
// strategy is still to be asked.
func (g *Machine[IN, OUT]) verdict(
	s *Slot[IN, OUT], a *call.Attempt[OUT], failed error, timeout *timedOut,
	d *decision.Decision,
) (ask bool) {
	r := &g.retry
	g.look(s, a, failed, timeout)
	found, err := r.policy.Find(&r.view)
	if !found {
		d.Err = failed
		return false
	}
	if *d, ask = r.policy.Judge(&r.view, err, g.situation()); ask && r.atOnce {
		action, err := r.policy.Ask(g.contextOfJudge(s, a), &r.view)
		*d, ask = r.policy.Conclude(&r.view, action, err, g.situation()), false
	}
	return ask
}

// contextOfJudge returns the context of a strategy that is asked here, with the values that a question has. It ends with the operator.
func (g *Machine[IN, OUT]) contextOfJudge(
	s *Slot[IN, OUT], a *call.Attempt[OUT],
) context.Context {
	if !g.retry.whole {
		return g.Host.Life
	}
	return call.WithEnd(g.contextBeside(s, &a.Token), g.Host.Life)
}

// doubt notes what the policy has found out about the outcome: the deadline of s may come next, or this is its end.
func (g *Machine[IN, OUT]) doubt(s *Slot[IN, OUT]) {
	s.doubts(g.retry.view.Reason, g.retry.view.Stage, g.retry.tracked)
}

// look fills in the view, as far as the policy looks.
func (g *Machine[IN, OUT]) look(
	s *Slot[IN, OUT], a *call.Attempt[OUT], failed error, timeout *timedOut,
) {
	v := &g.retry.view
	v.Number, v.Err, v.Remaining = int(s.attempts), failed, g.remaining(s)
	v.Stage, v.InDoubt, g.retry.tracked = stageOf(a, timeout)
	if timeout == nil {
		v.Results = a.Results()
	} // else nil: see forget
	if !g.retry.whole {
		return
	}
	v.Input = s.in
	v.Values = g.contextOf(s, a)
	v.Reasons = s.reasons()
	v.Elapsed = g.now - s.accepted
	v.Idempotent = g.retry.policy.IsIdempotent(v.Input)
}

// remaining returns what s has left of its timeout.
func (g *Machine[IN, OUT]) remaining(s *Slot[IN, OUT]) time.Duration {
	due := g.deadline(s)
	if due == Never {
		return decision.NoDeadline
	}
	return max(0, due-g.now)
}

func (g *Machine[IN, OUT]) situation() decision.Situation {
	return decision.Situation{
		Finishing: g.noRetries, Waiting: int(g.counts.WaitingForRetry), Random: g.retry.random,
	}
}

// question is what a strategy that may block is asked on a worker. Its letter is the answer.
type question[IN, OUT any] struct {
	call.Token
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

// ask puts the question to the strategy on a worker: it may block. Meanwhile s has neither permit nor call, and its
// deadline stands (law A3).
func (g *Machine[IN, OUT]) ask(s *Slot[IN, OUT], err error) {
	q := &question[IN, OUT]{err: err, view: g.retry.view}
	g.judged = nil
	g.retry.forget()
	s.needExtra() // apart from what only the question needs
	s.more().held = q
	g.enter(s, deciding)
	q.Start(g.Host, g.slots.wait(s), s.attempts, g.tokenDeadline(s))
	q.Carry(s.message())
	g.counts.Deciding++
	policy, panicked, ctx := g.retry.policy, g.Host.Panicked, g.contextBeside(s, &q.Token)
	g.runBeside(&g.asking, &q.Token, func() { q.put(ctx, policy, panicked) })
}

// answer goes on after the strategy has answered in time.
func (g *Machine[IN, OUT]) answer(s *Slot[IN, OUT], q *question[IN, OUT]) {
	g.counts.Deciding--
	g.tick()
	q.view.Remaining, q.view.Elapsed = g.remaining(s), g.now-s.accepted
	g.judged = q.err
	g.calling(callConclude, s)
	d := g.retry.policy.Conclude(&q.view, q.action, q.failed, g.situation())
	g.called()
	g.decided(s, q.err, &d, nil)
}

// decided does what the policy has decided about an outcome with err. If it panicked, s ends with that (law A6).
func (g *Machine[IN, OUT]) decided(
	s *Slot[IN, OUT], err error, d *decision.Decision, panicked error,
) {
	g.retry.forget()
	g.judged = nil
	if g.retry.whole {
		s.note(d.Reason)
	}
	if panicked != nil {
		g.fail(s, lazyerr.Join(panicked, err))
		return
	}
	switch d.Verdict {
	case decision.Final:
		g.settle(s, d.Err)
	case decision.Retried:
		if d.Err != nil {
			s.err = d.Err
		}
		s.doFirst(d.Before)
		s.attempt = nil
		s.retry = kindOfRetry(err == nil, d.Demanded > 0)
		g.backOff(s, *d)
	case decision.Failed:
		s.verdict = d.Verdict
		g.notRetried(s, *d)
		g.fail(s, g.Hooks.DecisionFailed(d.Err))
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
		g.settle(s, d.Err)
	}
}

// notRetried notes that there was a reason for a retry, and no retry.
func (g *Machine[IN, OUT]) notRetried(s *Slot[IN, OUT], d decision.Decision) {
	if g.Hooks.LogsRetries() {
		g.Hooks.NotRetried(g.report(s), d)
	}
}

// backOff lets s wait for its next attempt. One whose retry could not start before its deadline waits for the deadline, or
// times out early by choice.
func (g *Machine[IN, OUT]) backOff(s *Slot[IN, OUT], d decision.Decision) {
	g.tick()
	g.enter(s, backoff)
	g.counts.WaitingForRetry++
	due := g.deadline(s)
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
		g.timeOut(s)
	case d.Delay == 0 && !tooLate:
		g.retryNow(s)
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
func (g *Machine[IN, OUT]) prepare(
	s *Slot[IN, OUT], a *call.Attempt[OUT], before func(ctx context.Context) error,
) {
	g.enter(s, preparing)
	ctx := g.contextBeside(s, &a.Token)
	g.runBeside(&g.before, &a.Token, func() {
		if g.doBefore(ctx, a, before) {
			a.Post()
		}
	})
}

// doBefore does what the strategy wants done before the attempt a, on a worker, and reports whether the call may follow.
func (g *Machine[IN, OUT]) doBefore(
	ctx context.Context, a *call.Attempt[OUT], before func(ctx context.Context) error,
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
func (g *Machine[IN, OUT]) prepared(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	g.tick()
	g.EndIfCancelled() // now, not when the driver looks (law A5)
	switch deadline := a.DeadlineAt(); {
	case g.failure != nil:
	case deadline != call.NoDeadline && g.now >= deadline: // its timeout is due, too
	default:
		g.invoke(s, a)
	}
}
