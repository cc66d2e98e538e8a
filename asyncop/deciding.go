package asyncop

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// The core's way from an outcome to the next attempt:
//
//	outcome ─▶ judge ──────────────────────▶ decided ─▶ settle | fail | backOff ─▶ … ─▶ start ─▶ invoke
//	             │ the strategy may block       ▲                                        │         ▲
//	             └─▶ ask ─▶ (worker) ─▶ answer ─┘                   something to do first └▶ prepare┘

// judge shows an outcome to the policy. A strategy that does not block is asked here.
func (c *core[IN, OUT]) judge(
	e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], failed error, timeout *timedOut,
) {
	if c.retry.whole || !c.slow.watched || c.slow.attempt != a {
		c.tick()
		c.watchJudgement(e, a)
	} // else it goes on: AsyncInvoke has completed it
	c.slow.judged = true
	var d decision.Decision
	var ask bool
	c.judged = failed
	panicked := c.protect(callDecide, e, nil, func() {
		r := &c.retry
		defer func() { e.Value.doubt(r.view.Reason, r.view.Stage) }() // its deadline may come next, or this is the end of it
		c.look(e, a, failed, timeout)
		if d, ask = r.policy.Judge(&r.view, c.situation()); ask && r.atOnce {
			action, err := r.policy.Ask(c.host.Life, &r.view)
			d, ask = r.policy.Conclude(&r.view, action, err, c.situation()), false
		}
	})
	if ask && panicked == nil {
		c.ask(e, failed)
		return
	}
	c.decided(e, failed, d, panicked)
}

// watchJudgement begins to watch what the policy does with a.
func (c *core[IN, OUT]) watchJudgement(
	e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT],
) {
	c.slow = slowCall[IN, OUT]{
		watched: true, judged: true, since: c.now, stalled: c.witness.atStart(), in: e.Value.in, attempt: a,
	}
}

// look fills in the view, as far as the policy looks.
func (c *core[IN, OUT]) look(
	e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], failed error, timeout *timedOut,
) {
	s, v := &e.Value, &c.retry.view
	v.Number, v.Err, v.Remaining = int(s.attempts), failed, c.remaining(e)
	v.Stage, v.InDoubt = stageOf(a, timeout)
	if timeout == nil {
		v.Results = a.Results()
	} // else nil: see forget
	if !c.retry.whole {
		return
	}
	v.Input = s.in
	v.Values = (*call.AttemptContext[*queue.Entry[slot[IN, OUT]], OUT])(a)
	v.Reasons = s.reasons()
	v.Elapsed = c.now - s.accepted
	v.Idempotent = c.retry.policy.IsIdempotent(v.Input)
}

// remaining returns what e has left of its timeout.
func (c *core[IN, OUT]) remaining(e *queue.Entry[slot[IN, OUT]]) time.Duration {
	if c.timeout == 0 {
		return decision.NoDeadline
	}
	return max(0, c.deadline(e)-c.now)
}

func (c *core[IN, OUT]) situation() decision.Situation {
	return decision.Situation{
		Finishing: c.noRetries, Waiting: int(c.stats.WaitingForRetry), Random: c.retry.random,
	}
}

// question is what a strategy that may block is asked on a worker. It is the strategy's context, and its letter is the answer.
type question[IN, OUT any] struct {
	call.Token[*queue.Entry[slot[IN, OUT]]]
	err  error                   // of the outcome
	view predicates.Attempt[OUT] // of the attempt

	// Written by the worker before it posts the letter.
	action decision.Action
	failed error
}

// put puts the question to the strategy, on a worker, unless it is late.
func (q *question[IN, OUT]) put(policy *decision.Steps[OUT]) {
	if q.Late() != nil {
		return
	}
	defer q.Finish()
	var g guard.Guard
	defer g.Close(func(recovered any) { q.failed = newPanicError(recovered) }) // Ask itself recovers panics
	q.action, q.failed = policy.Ask((*call.Context[*queue.Entry[slot[IN, OUT]]])(&q.Token), &q.view)
	g.Returned()
}

// ask puts the question to the strategy on a worker: it may block. Meanwhile e has neither permit nor call, and its
// deadline stands (law A3).
func (c *core[IN, OUT]) ask(e *queue.Entry[slot[IN, OUT]], err error) {
	q := &question[IN, OUT]{err: err, view: c.retry.view}
	c.judged = nil
	c.retry.forget()
	deadline := call.NoDeadline
	if c.timeout > 0 {
		deadline = c.deadline(e)
	}
	q.Start(c.host, e, e.Value.attempts, deadline)
	e.Value.more().held = q
	c.enter(e, deciding)
	c.stats.Deciding++
	policy := c.retry.policy
	c.runBeside(&c.asking, &q.Token, func() { q.put(policy) })
}

// answer goes on after the strategy has answered in time.
func (c *core[IN, OUT]) answer(e *queue.Entry[slot[IN, OUT]], q *question[IN, OUT]) {
	q.Entry = nil
	c.stats.Deciding--
	c.tick()
	c.watchJudgement(e, e.Value.attempt)
	q.view.Remaining, q.view.Elapsed = c.remaining(e), c.now-e.Value.accepted
	var d decision.Decision
	c.judged = q.err
	panicked := c.protect(callDecide, e, nil, func() {
		d = c.retry.policy.Conclude(&q.view, q.action, q.failed, c.situation())
	})
	c.decided(e, q.err, d, panicked)
}

// decided does what the policy has decided about an outcome with err. If it panicked, e ends with that (law A6).
func (c *core[IN, OUT]) decided(
	e *queue.Entry[slot[IN, OUT]], err error, d decision.Decision, panicked error,
) {
	c.retry.forget()
	c.judged = nil
	if c.retry.whole {
		e.Value.note(d.Reason)
	}
	if panicked != nil {
		c.fail(e, lazyerr.Join(panicked, err))
		return
	}
	s := &e.Value
	switch d.Verdict {
	case decision.Accepted:
		c.settle(e, d.Err)
	case decision.Retried:
		if d.Err != nil {
			s.err = d.Err
		}
		s.doFirst(d.Before)
		s.attempt = nil
		s.retry = kindOfRetry(err == nil, d.Demanded > 0)
		c.backOff(e, d)
	case decision.Failed:
		s.verdict = strategies.Verdict(d.Verdict)
		c.logRefusal(s, d)
		c.fail(e, ownPanic(d.Err))
	default:
		s.verdict = strategies.Verdict(d.Verdict)
		c.stats.Exhausted++
		switch d.Verdict {
		case decision.Finishing:
			c.stats.CutByEndOfInput++
		case decision.OverBudget:
			c.stats.OverBudget++
		case decision.TooManyWaiting:
			c.stats.TooManyWaiting++
		default: // Refused
		}
		c.logRefusal(s, d)
		if d.Err == nil && c.exhaustedAsFailure {
			d.Err = exhausted(d)
		}
		c.settle(e, d.Err)
	}
}

// logRefusal tells that there was a reason for a retry, and no retry.
func (c *core[IN, OUT]) logRefusal(s *slot[IN, OUT], d decision.Decision) {
	if c.logsRetries() {
		c.log(&c.refuseLog, slog.LevelDebug, "asyncop: no retry", s.in,
			slog.String("verdict", d.Verdict.String()), slog.String("reason", d.Reason.String()),
			slog.Int("attempts", int(s.attempts)), slog.Any("error", d.Err))
	}
}

// backOff lets e wait for its next attempt. One whose retry could not start before its deadline waits for the deadline, or
// times out early by choice.
func (c *core[IN, OUT]) backOff(e *queue.Entry[slot[IN, OUT]], d decision.Decision) {
	c.tick()
	s := &e.Value
	c.enter(e, backoff)
	c.stats.WaitingForRetry++
	tooLate := c.timeout > 0 && d.Delay >= c.deadline(e)-c.now // capped, or it would be now
	if c.logsRetries() {
		attrs := []slog.Attr{
			slog.Int("attempts", int(s.attempts)), slog.Duration("delay", max(d.Delay, d.Demanded)),
			slog.String("reason", d.Reason.String()), slog.Any("error", d.Err),
		}
		if tooLate {
			attrs = append(attrs, slog.String("verdict", "not before the deadline"))
			c.log(&c.refuseLog, slog.LevelDebug, "asyncop: no retry", s.in, attrs...)
		} else {
			c.log(&c.retryLog, slog.LevelDebug, "asyncop: retry", s.in, attrs...)
		}
	}
	switch {
	case tooLate && c.earlyTimeout:
		c.timeOut(e)
	case d.Delay == 0 && !tooLate:
		c.retryNow(e)
	default: // a timer that is due at the deadline or later never fires: deadlines come first
		c.timers.Arm(&s.timer, later(c.now, max(d.Delay, d.Demanded)))
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
func (c *core[IN, OUT]) prepare(
	e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], before func(ctx context.Context) error,
) {
	c.enter(e, preparing)
	c.runBeside(&c.before, &a.Token, func() {
		if a.Late() != nil {
			return
		}
		refuse := func(err error) { a.Refuse(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err}) }
		var g guard.Guard
		defer g.Close(func(recovered any) { refuse(newPanicError(recovered)) })
		err := before((*call.Context[*queue.Entry[slot[IN, OUT]]])(&a.Token))
		g.Returned()
		if err != nil {
			refuse(err)
		} else {
			a.Post()
		}
	})
}

// prepared makes the call, after what was to be done first.
func (c *core[IN, OUT]) prepared(e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT]) {
	c.tick()
	c.endIfCancelled() // now, not when the loop is told (law A5)
	switch deadline := a.DeadlineAt(); {
	case c.failure != nil:
	case deadline != call.NoDeadline && c.now >= deadline: // its timeout is due, too
	default:
		c.invoke(e, a)
	}
}
