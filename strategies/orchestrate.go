package strategies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
)

// Decide says what becomes of the outcome of a, in the order of RFC 0049:
//
//  1. The classifier names no reason, or a rejection: the outcome is accepted.
//  2. Nobody retries any more: that is the end of it ([Finishing]). A FLIP-232
//     strategy, which depends on attempts alone, is asked all the same: where it
//     says no, the outcome is Refused.
//  3. The reason is always retried: after the controlled back-off, and nobody is
//     asked.
//  4. The strategy is asked, unless a server demands never to be called again. No is [Refused]; an error or a panic is [Failed], and
//     joined to the outcome.
//  5. The bound on waiting elements has its say.
//  6. The delay is spread by jitter, then cut to the time that the element has
//     left. A retry that is cut will not be made.
//  7. The budget has its say, about retries that will be made and that the strategy
//     was asked about.
//
// An operator whose strategy may block takes the steps one by one: [Policy.Judge]
// (1 to 3), [Policy.Ask] (4) and [Policy.Conclude] (the rest), of which only Ask
// leaves its loop. Decide itself is all of them at once. It fills in a.Reason and
// a.Stage, which is not Unreported when the strategy sees it; apart from that and
// the budget it changes nothing. So who calls it says in a.Idempotent what
// [Policy.IsIdempotent] knows, and in a.Remaining how much time is left.
func (p *Policy[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT], now Situation) Decision {
	d, ask := p.Judge(a, now)
	if !ask {
		return d
	}
	action, err := p.Ask(ctx, a)
	return p.Conclude(a, action, err, now)
}

// Judge finds the reason for another attempt, which it writes to a.Reason, and
// decides as far as the strategy need not be asked: ask tells whether it must be.
// It calls the classifier and does not block.
func (p *Policy[OUT]) Judge(a *predicates.Attempt[OUT], now Situation) (d Decision, ask bool) {
	if p.classify == nil || !p.Considers(a.Err) {
		return Decision{Err: a.Err}, false
	}
	reason, err := p.reasonFor(a)
	if err != nil {
		return failed(a, err), false
	}
	if reason.IsZero() {
		return Decision{Err: a.Err}, false
	}
	a.Reason = reason
	if reason.IsRejection() {
		return Decision{Reason: reason, Err: a.Err}, false
	}
	if a.Stage == predicates.Unreported {
		a.Stage = predicates.NetworkTime // the safe side
	}
	switch {
	case now.Finishing && p.flip == nil:
		return Decision{Verdict: Finishing, Reason: reason, Err: a.Err}, false
	case reason.AlwaysRetry():
		return p.schedule(a, Action{Retry: true, Delay: ControlledBackoff(a.Retries())}, now), false
	}
	return Decision{}, true
}

// reasonFor calls the classifier, which finds the stage as far as the error proves it.
func (p *Policy[OUT]) reasonFor(a *predicates.Attempt[OUT]) (r predicates.Reason, err error) {
	defer recoverTo(&err)
	a.Reason = predicates.Reason{} // of an earlier attempt: a may be used again
	r, ok := p.classify(a)
	if !ok {
		return predicates.Reason{}, nil
	}
	return r, nil
}

// Ask calls the strategy, which may block unless p.DecidesAtOnce. A panic is
// returned as a [*PanicError]; runtime.Goexit is the caller's to handle. Ask is
// safe for concurrent use if the strategy is.
func (p *Policy[OUT]) Ask(ctx context.Context, a *predicates.Attempt[OUT]) (action Action, err error) {
	defer recoverTo(&err)
	return p.asked.Decide(ctx, a)
}

// Conclude makes a decision of the strategy's answer. a.Remaining and now are as
// of now, not of when the strategy was asked.
func (p *Policy[OUT]) Conclude(a *predicates.Attempt[OUT], action Action, err error, now Situation) Decision {
	d := Decision{Reason: a.Reason, Err: a.Err}
	if action.Err != nil {
		d.Err = action.Err
	}
	switch {
	case err != nil:
		return failed(a, err)
	case !action.Retry:
		d.Verdict = Refused
		return d
	case action.Delay < 0:
		return failed(a, fmt.Errorf("strategies: %T: negative delay: %v", p.strategy, action.Delay))
	case now.Finishing:
		d.Verdict = Finishing
		return d
	}
	return p.schedule(a, action, now)
}

// schedule decides over a retry that is wanted.
func (p *Policy[OUT]) schedule(a *predicates.Attempt[OUT], action Action, now Situation) Decision {
	d := Decision{Verdict: Retried, Reason: a.Reason, Delay: action.Delay, Err: a.Err, Before: action.Before}
	if action.Err != nil {
		d.Err = action.Err
	}
	if p.maxWaiting > 0 && now.Waiting >= p.maxWaiting {
		return Decision{Verdict: TooManyWaiting, Reason: d.Reason, Err: d.Err}
	}
	switch {
	case action.Demanded:
		d.Demanded = action.Delay
	case now.Random != nil && !d.Reason.AlwaysRetry(): // the controlled back-off is as RFC 0049 lays it down
		var err error
		if d.Delay, err = p.spread(d.Delay, now.Random); err != nil {
			return failed(a, err)
		}
	}
	if d.Delay >= a.Remaining { // law A5
		d.Delay, d.Capped = max(0, a.Remaining), true
		return d
	}
	if !d.Reason.AlwaysRetry() && !p.budget.Withdraw() {
		return Decision{Verdict: OverBudget, Reason: d.Reason, Err: d.Err}
	}
	return d
}

// spread applies the jitter.
func (p *Policy[OUT]) spread(delay time.Duration, random *rand.Rand) (spread time.Duration, err error) {
	defer recoverTo(&err)
	return p.jitter.Apply(delay, random), nil
}

// failed is the decision over an outcome that could not be decided over.
func failed[OUT any](a *predicates.Attempt[OUT], err error) Decision {
	return Decision{Verdict: Failed, Reason: a.Reason, Err: lazyerr.Join(err, a.Err)}
}
