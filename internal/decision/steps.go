// Package decision goes from the outcome of an attempt to the next attempt: Steps.Decide. Package strategies builds the steps from
// what a user says (Policy.Steps).
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
	Classify   predicates.Classifier[OUT] // nil: nothing is looked at
	Results    bool                       // results are looked at; else they are accepted, and Decide is not called for them
	Errors     bool                       // errors are
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

// NeedsElement reports whether Decide and Ask look at more of an attempt than its number and outcome. If not, an operator may
// leave the rest of the view unset, except for Remaining.
func (p *Steps[OUT]) NeedsElement() bool { return !p.ByAttempts }

// IsIdempotent reports whether the call for input may happen twice.
func (p *Steps[OUT]) IsIdempotent(input any) bool {
	if i, ok := input.(predicates.Idempotent); ok {
		return i.Idempotent()
	}
	return p.Idempotent != nil && p.Idempotent(input)
}

// Decide is the one way from an outcome to what follows from it, in the order of RFC 0049:
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
// Only step 4 may block. An operator that cannot wait sets now.Beside: then the answer is [Asked] before step 4, the operator
// calls Ask elsewhere, and Decide again with the answer, for the steps that are left.
//
// Decide is called for outcomes that are looked at. It fills in a.Reason and a.Stage; the caller fills in a.Idempotent and a.Remaining. That may be as
// of an earlier look at the clock, if the caller looks again before it makes a retry. A panic of user code ends with Failed; the caller
// handles runtime.Goexit.
func (p *Steps[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT], now *Situation) (d Decision) {
	if now.Answer != nil {
		return p.conclude(a, now.Answer.Action, now.Answer.Err, now)
	}
	found := false
	defer func() {
		if value := recover(); value != nil {
			if !found && now.Found != nil {
				now.Found()
			}
			d = failed(a, guard.Recovered("strategies", value))
		}
	}()
	if !p.ByAttempts { // else nobody asks
		a.Idempotent = a.Idempotent || isDeduplicated(a)
	}
	a.Reason = predicates.Reason{} // of an earlier attempt: a may be used again
	if r, ok := p.Classify(a); ok {
		a.Reason = r
	}
	found = true
	if now.Found != nil {
		now.Outage = now.Found()
	}
	if a.Reason.IsZero() || a.Reason.IsRejection() {
		return Decision{Reason: a.Reason, Err: a.Err}
	}
	if a.Stage == predicates.Unreported {
		a.Stage = predicates.NetworkTime // the safe side
	}
	switch {
	case now.Finishing && !p.ByAttempts:
		return Decision{NoRetryReason: Finishing, Reason: a.Reason, Err: a.Err}
	case a.Reason.AlwaysRetry():
		return p.conclude(a, Action{Retry: true, Delay: ControlledBackoff(a.Retries())}, nil, now)
	case now.Beside && !p.AtOnce:
		return Decision{NoRetryReason: Asked, Reason: a.Reason, Err: a.Err}
	}
	if now.Context != nil {
		ctx = now.Context()
	}
	action, err := p.Strategy(ctx, a)
	return p.conclude(a, action, err, now)
}

// isDeduplicated reports whether the servers of a call recognise its requests when they come again (law X1): its attempt knows,
// which the values of an operator's view are.
func isDeduplicated[OUT any](a *predicates.Attempt[OUT]) bool {
	attempt, ok := a.Value(ctxkey.Stage{}).(interface{ Deduplicated() bool })
	return ok && attempt.Deduplicated()
}

// Ask calls the strategy, which may block unless p.AtOnce is set. A panic is its error; the caller handles runtime.Goexit. Ask is
// safe for concurrent use if the strategy is.
func (p *Steps[OUT]) Ask(ctx context.Context, a *predicates.Attempt[OUT]) (answer Answer) {
	defer func() {
		if value := recover(); value != nil {
			answer = Answer{Err: guard.Recovered("strategies", value)}
		}
	}()
	answer.Action, answer.Err = p.Strategy(ctx, a)
	return answer
}

// conclude decides over the answer of the strategy, or over the one that stands in for it.
func (p *Steps[OUT]) conclude(a *predicates.Attempt[OUT], action Action, err error, now *Situation) Decision {
	d := Decision{Reason: a.Reason, Err: a.Err}
	if action.Err != nil {
		d.Err = action.Err
	}
	always := d.Reason.AlwaysRetry()
	switch {
	case err != nil:
		return failed(a, err)
	case !action.Retry:
		d.NoRetryReason = Refused
		return d
	case action.Delay < 0:
		return failed(a, fmt.Errorf("strategies: %T: negative delay: %v", p.Asked, action.Delay))
	case now.Finishing:
		d.NoRetryReason = Finishing
		return d
	case p.MaxDelay > 0 && action.Delay > p.MaxDelay && !always:
		d.NoRetryReason = Refused
		return d
	case p.MaxWaiting > 0 && now.Waiting >= p.MaxWaiting:
		d.NoRetryReason = TooManyWaiting
		return d
	}
	delay := action.Delay
	switch {
	case action.Demanded:
		d.Demanded = delay
	case p.Jitter != nil && now.Random != nil && !always: // the controlled back-off is as RFC 0049 lays it down
		if delay, err = p.spread(delay, now.Random); err != nil {
			return failed(a, err)
		}
	}
	switch isCapped := delay >= a.Remaining; { // law A5
	case isCapped:
		delay, d.Capped = max(0, a.Remaining), true
	case !always && !now.Outage && now.MayRetry != nil && !now.MayRetry():
		d.NoRetryReason, d.Demanded = OverBudget, 0
		return d
	}
	d.NoRetryReason, d.Delay, d.Before = Retried, delay, action.Before
	return d
}

// spread applies the jitter.
func (p *Steps[OUT]) spread(delay time.Duration, random *rand.Rand) (spread time.Duration, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = guard.Recovered("strategies", value)
		}
	}()
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
	return Decision{NoRetryReason: Failed, Reason: a.Reason, Err: guard.Join(err, a.Err)}
}
