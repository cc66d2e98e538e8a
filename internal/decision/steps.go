// Package decision holds the steps from the outcome of an attempt to the next attempt: judge, ask, conclude. Package strategies
// builds them from what a user says (Policy.Steps), and operators take them one by one.
package decision

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// Steps are a policy as an operator uses it. They never change once they are built, and are safe for concurrent use as far
// as the functions in them are.
type Steps[OUT any] struct {
	Classify   predicates.Classifier[OUT] // nil: nothing is ever retried
	Results    bool                       // results are looked at
	Errors     bool                       // errors are looked at
	Strategy   func(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)
	Asked      any                                                       // the user's strategy, for messages and MaxRetriesOf
	AtOnce     bool                                                      // Strategy is known not to block
	ByAttempts bool                                                      // made of an AsyncRetryStrategy: number and outcome suffice
	NoRetry    bool                                                      // made of strategies.NoRetry
	Jitter     func(base time.Duration, random *rand.Rand) time.Duration // nil: none
	MaxWaiting int                                                       // 0: no bound
	MaxDelay   time.Duration                                             // 0: no bound
	Idempotent func(input any) bool                                      // nil: false for all
}

// Considers reports whether outcomes of this kind are looked at: errors or, with a nil err, results. Others are accepted
// without calling Find.
func (p *Steps[OUT]) Considers(err error) bool {
	return p.Classify != nil && (err != nil && p.Errors || err == nil && p.Results)
}

// NeedsElement reports whether Find and Ask look at more of an attempt than its number and outcome. If not, an operator may
// leave the rest of the view unset, except for Remaining.
func (p *Steps[OUT]) NeedsElement() bool { return !p.ByAttempts }

// IsIdempotent reports whether the call for input may happen twice.
func (p *Steps[OUT]) IsIdempotent(input any) bool {
	if i, ok := input.(predicates.Idempotent); ok {
		return i.Idempotent()
	}
	return p.Idempotent != nil && p.Idempotent(input)
}

// Decide takes all steps at once, in the order of RFC 0049:
//
//  1. The classifier names no reason, or a rejection: the outcome is accepted.
//  2. No retry follows any more ([Finishing]). A strategy that depends on attempts
//     alone is asked all the same: where it refuses, the outcome is [Refused].
//  3. The reason is always retried: after the controlled back-off, and the strategy
//     is not asked.
//  4. The strategy is asked, unless a server demands never to be called again. A
//     refusal is [Refused]. An error or a panic is [Failed], and joined to the outcome.
//  5. The bounds on the delay and on waiting elements are applied.
//  6. The delay is spread by jitter, then cut to the time that the element has
//     left. A retry that is cut will not be made.
//  7. The budget is charged, for retries that will be made and that the strategy
//     was asked about.
//
// Find does 1, Judge 2 and 3, Ask does 4, and Conclude does the rest. Only Ask may block. Decide fills in a.Reason and a.Stage;
// the caller fills in a.Idempotent and a.Remaining.
func (p *Steps[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT], now Situation) Decision {
	if !p.Considers(a.Err) {
		return Decision{Err: a.Err}
	}
	found, err := p.Find(a)
	if !found {
		return Decision{Err: a.Err}
	}
	d, ask := p.Judge(a, err, now)
	if !ask {
		return d
	}
	action, err := p.Ask(ctx, a)
	return p.Conclude(a, action, err, now)
}

// Find calls the classifier, which does not block, and writes the reason for another attempt to a.Reason. If there is none,
// found is false, and the outcome is final, as it is for most elements. Else Judge decides, also over the error of a classifier
// that has failed.
func (p *Steps[OUT]) Find(a *predicates.Attempt[OUT]) (found bool, err error) {
	if !p.ByAttempts { // else nobody asks
		a.Idempotent = a.Idempotent || isTracked(a)
	}
	err = p.classify(a)
	return err != nil || !a.Reason.IsZero(), err
}

// Judge decides over what Find has found, unless the strategy must be asked, which ask reports. It calls no user code.
func (p *Steps[OUT]) Judge(a *predicates.Attempt[OUT], err error, now Situation) (d Decision, ask bool) {
	if err != nil {
		return failed(a, err), false
	}
	reason := a.Reason
	if reason.IsRejection() {
		return Decision{Reason: reason, Err: a.Err}, false
	}
	if a.Stage == predicates.Unreported {
		a.Stage = predicates.NetworkTime // the safe side
	}
	switch {
	case now.Finishing && !p.ByAttempts:
		return Decision{Verdict: Finishing, Reason: reason, Err: a.Err}, false
	case reason.AlwaysRetry():
		return p.schedule(a, Action{Retry: true, Delay: ControlledBackoff(a.Retries())}, now), false
	}
	return Decision{}, true
}

// isTracked reports whether the servers of a call recognise its requests when they come again (law X1): its attempt knows,
// which the values of an operator's view are.
func isTracked[OUT any](a *predicates.Attempt[OUT]) bool {
	attempt, ok := a.Value(ctxkey.Stage{}).(interface{ Tracked() bool })
	return ok && attempt.Tracked()
}

// classify calls the classifier, which finds the stage as far as the error proves it.
func (p *Steps[OUT]) classify(a *predicates.Attempt[OUT]) (err error) {
	defer recoverTo(&err)
	a.Reason = predicates.Reason{} // of an earlier attempt: a may be used again
	if r, ok := p.Classify(a); ok {
		a.Reason = r
	}
	return nil
}

// Ask calls the strategy, which may block unless p.AtOnce is set. A panic is returned as a [*panics.Error]; the caller handles
// runtime.Goexit. Ask is safe for concurrent use if the strategy is.
func (p *Steps[OUT]) Ask(ctx context.Context, a *predicates.Attempt[OUT]) (action Action, err error) {
	defer recoverTo(&err)
	return p.Strategy(ctx, a)
}

// Conclude makes a decision of the strategy's answer. a.Remaining and now are as of now, not of when the strategy was asked.
func (p *Steps[OUT]) Conclude(a *predicates.Attempt[OUT], action Action, err error, now Situation) Decision {
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
		return failed(a, fmt.Errorf("strategies: %T: negative delay: %v", p.Asked, action.Delay))
	case now.Finishing:
		d.Verdict = Finishing
		return d
	}
	return p.schedule(a, action, now)
}

// schedule decides over a retry that is wanted.
func (p *Steps[OUT]) schedule(a *predicates.Attempt[OUT], action Action, now Situation) Decision {
	d := Decision{Verdict: Retried, Reason: a.Reason, Delay: action.Delay, Err: a.Err, Before: action.Before}
	if action.Err != nil {
		d.Err = action.Err
	}
	if p.MaxDelay > 0 && d.Delay > p.MaxDelay && !d.Reason.AlwaysRetry() {
		return Decision{Verdict: Refused, Reason: d.Reason, Err: d.Err}
	}
	if p.MaxWaiting > 0 && now.Waiting >= p.MaxWaiting {
		return Decision{Verdict: TooManyWaiting, Reason: d.Reason, Err: d.Err}
	}
	switch {
	case action.Demanded:
		d.Demanded = action.Delay
	case p.Jitter != nil && now.Random != nil && !d.Reason.AlwaysRetry(): // the controlled back-off is as RFC 0049 lays it down
		var err error
		if d.Delay, err = p.spread(d.Delay, now.Random); err != nil {
			return failed(a, err)
		}
	}
	if d.Delay >= a.Remaining { // law A5
		d.Delay, d.Capped = max(0, a.Remaining), true
		return d
	}
	if !d.Reason.AlwaysRetry() && now.MayRetry != nil && !now.MayRetry() {
		return Decision{Verdict: OverBudget, Reason: d.Reason, Err: d.Err}
	}
	return d
}

// spread applies the jitter.
func (p *Steps[OUT]) spread(delay time.Duration, random *rand.Rand) (spread time.Duration, err error) {
	defer recoverTo(&err)
	return Spread(p.Jitter, delay, random), nil
}

// Spread returns the delay to wait for base: the answer of jitter, or base itself if there is none. Negative delays, given and
// returned, become 0.
func Spread(jitter func(time.Duration, *rand.Rand) time.Duration, base time.Duration, random *rand.Rand) time.Duration {
	base = max(0, base)
	if jitter == nil {
		return base
	}
	return max(0, jitter(base, random))
}

// failed is the decision over an outcome that could not be decided over.
func failed[OUT any](a *predicates.Attempt[OUT], err error) Decision {
	return Decision{Verdict: Failed, Reason: a.Reason, Err: guard.Join(err, a.Err)}
}
