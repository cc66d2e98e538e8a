package asyncop

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
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

// judge shows a completed attempt to the policy. A strategy that does not block is asked here.
func (c *core[IN, OUT]) judge(e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT]) {
	if c.retry.whole || !c.slow.watched || c.slow.attempt != a {
		c.tick()
		c.watchJudgement(e, a)
	} // else it goes on: AsyncInvoke has completed it
	c.slow.judged = true
	var d decision.Decision
	var ask bool
	panicked := c.protect(callDecide, e, a, func() {
		r := &c.retry
		defer func() { e.Value.doubt(r.view.Reason, r.view.Stage) }() // its deadline may come next, or this is the end of it
		c.look(e, a)
		if d, ask = r.policy.Judge(&r.view, c.situation()); ask && r.atOnce {
			action, err := r.policy.Ask(c.life, &r.view)
			d, ask = r.policy.Conclude(&r.view, action, err, c.situation()), false
		}
	})
	if ask && panicked == nil {
		c.ask(e, a)
		return
	}
	c.decided(e, a, d, panicked)
}

// watchJudgement begins to watch what the policy does with a.
func (c *core[IN, OUT]) watchJudgement(e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT]) {
	c.slow = slowCall[IN, OUT]{
		watched: true, judged: true, since: c.now, stalled: c.witness.atStart(), in: e.Value.in, attempt: a,
	}
}

// look fills in the view, as far as the policy looks.
func (c *core[IN, OUT]) look(e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT]) {
	s, v := &e.Value, &c.retry.view
	v.Number, v.Results, v.Err, v.Remaining = int(s.attempts), a.results, a.err, c.remaining(e)
	state := a.state.Load()
	v.Stage, v.InDoubt = stageIn(state), inDoubt(state)
	if !c.retry.whole {
		return
	}
	v.Input = s.in
	v.Values = (*attemptContext[IN, OUT])(a)
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

// ask puts the question to the strategy on a worker: it may block. Meanwhile e has neither permit nor call, and its
// deadline stands (law A3).
func (c *core[IN, OUT]) ask(e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT]) {
	view := new(predicates.Attempt[OUT])
	*view = c.retry.view
	c.retry.forget()
	question := &attempt[IN, OUT]{core: c, entry: e, number: a.number, deadline: noDeadline}
	if c.timeout > 0 {
		question.deadline = c.deadline(e)
	}
	e.Value.attempt = question
	c.enter(e, deciding)
	c.stats.Deciding++
	c.runBeside(&c.asking, question, func() {
		var action decision.Action
		var err error
		returned := false
		defer func() { // Ask itself recovers panics
			if !returned {
				err = newPanicError(recover())
			}
			question.state.Or(over)
			question.endContext()
			c.post(question, func() { c.answer(question, a, view, action, err) })
		}()
		action, err = c.retry.policy.Ask(sideContext[IN, OUT]{(*attemptContext[IN, OUT])(question)}, view)
		returned = true
	})
}

// answer goes on after the strategy has spoken. If e has ended meanwhile, or its time has run out, nobody listens.
func (c *core[IN, OUT]) answer(
	question, a *attempt[IN, OUT], view *predicates.Attempt[OUT], action decision.Action, failed error,
) {
	e := question.entry
	if e == nil {
		return
	}
	question.entry = nil
	e.Value.attempt = a
	c.stats.Deciding--
	c.tick()
	c.watchJudgement(e, a)
	view.Remaining, view.Elapsed = c.remaining(e), c.now-e.Value.accepted
	var d decision.Decision
	panicked := c.protect(callDecide, e, a, func() {
		d = c.retry.policy.Conclude(view, action, failed, c.situation())
	})
	c.decided(e, a, d, panicked)
}

// decided does what the policy has decided about the outcome of a. If it panicked, e ends with that (law A6).
func (c *core[IN, OUT]) decided(
	e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT], d decision.Decision, panicked error,
) {
	c.retry.forget()
	if c.retry.whole {
		e.Value.note(d.Reason)
	}
	if panicked != nil {
		c.fail(e, lazyerr.Join(panicked, a.err))
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
		s.retry = kindOfRetry(a.err == nil, d.Demanded > 0)
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
// timeouts stand.
func (c *core[IN, OUT]) prepare(
	e *queue.Entry[slot[IN, OUT]], a *attempt[IN, OUT], before func(ctx context.Context) error,
) {
	c.enter(e, preparing)
	c.runBeside(&c.before, a, func() {
		var err error
		returned := false
		defer func() {
			if !returned {
				err = newPanicError(recover())
			}
			c.post(&attempt[IN, OUT]{core: c}, func() { c.prepared(a, err) })
		}()
		err = before(sideContext[IN, OUT]{(*attemptContext[IN, OUT])(a)})
		returned = true
	})
}

// prepared makes the call, unless what was to be done first has failed: then that is the attempt's outcome, and nothing
// has been sent.
func (c *core[IN, OUT]) prepared(a *attempt[IN, OUT], failed error) {
	e := a.entry
	switch {
	case e == nil: // the attempt was cut off
		return
	case failed != nil:
		if a.claim() {
			a.err = &predicates.StageError{Stage: predicates.ClientDispatch, Err: failed}
			if a.conclude() {
				c.outcome(a) // at once: it had its place in the mailbox
			}
		}
		return
	}
	c.tick()
	c.endIfCancelled() // now, not when the loop is told (law A5)
	switch {
	case c.failure != nil:
	case a.deadline != noDeadline && c.now >= a.deadline: // its timeout is due, too
	default:
		c.invoke(e, a)
	}
}

// post hands the loop something to do. Called from any goroutine.
func (c *core[IN, OUT]) post(a *attempt[IN, OUT], then func()) {
	a.then = then
	c.mail.post(a)
	c.wakeUp()
}
