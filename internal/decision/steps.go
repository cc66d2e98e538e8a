package decision

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// Steps are a policy in the form for operators. They are immutable, and safe for
// concurrent use if their functions are.
type Steps[OUT any] struct {
	// ByAttempts means that the policy is a FLIP-232 strategy. It has no reasons: see
	// HasReasons. Its Classify returns ok for the attempts that a predicate asks to
	// repeat.
	ByAttempts bool

	Classify         predicates.Classifier[OUT] // nil if the policy considers no attempt
	ConsidersResults bool                       // otherwise attempts with results are final without Decide
	ConsidersErrors  bool                       // otherwise attempts with errors are final without Decide
	ReasonOfError    predicates.Classifier[OUT] // see FindReasonOfFailure
	Strategy         func(ctx context.Context, a *predicates.Attempt[OUT]) (Action, error)
	Given            any                                                       // the strategy as the user gave it, for error texts and MaxRetriesOf
	AtOnce           bool                                                      // Strategy is known not to block
	NoRetry          bool                                                      // made of strategies.NoRetry
	Jitter           func(base time.Duration, random *rand.Rand) time.Duration // may be nil
	MaxWaiting       int                                                       // 0 means no bound
	MaxRetries       []MaxRetriesFor                                           // for single reasons
	MaxDelay         time.Duration                                             // 0 means no bound
	Idempotent       func(input any) bool                                      // may be nil; asked about inputs that are not a predicates.Idempotent
}

// Held has the steps of the [Policy] that embeds it. Package strategies embeds it by an
// unexported alias, so users do not see the steps.
type Held[OUT any] struct{ steps Steps[OUT] }

// Hold returns the Held of a policy.
func Hold[OUT any](s Steps[OUT]) Held[OUT] { return Held[OUT]{s} }

func (h *Held[OUT]) held() *Steps[OUT] { return &h.steps }

// Policy is a type that embeds [Held].
type Policy[OUT any] interface{ held() *Steps[OUT] }

// StepsOf returns the steps of a policy.
func StepsOf[OUT any](p Policy[OUT]) *Steps[OUT] { return p.held() }

// MaxRetriesFor bounds the retries of an element for one reason.
type MaxRetriesFor struct {
	Reason  predicates.Reason
	Retries int
}

// LimitOf returns the index of the bound for a reason in MaxRetries, or -1.
func (p *Steps[OUT]) LimitOf(reason predicates.Reason) int {
	return slices.IndexFunc(p.MaxRetries, func(m MaxRetriesFor) bool { return m.Reason == reason })
}

// HasReasons reports whether attempts have reasons. Otherwise the policy reads only the
// number, results, error and Remaining of an attempt, so the other fields may be zero.
// Its actions have no step Before.
func (p *Steps[OUT]) HasReasons() bool { return !p.ByAttempts }

// IsIdempotent reports whether the call for input may happen twice.
func (p *Steps[OUT]) IsIdempotent(input any) bool {
	if i, ok := input.(predicates.Idempotent); ok {
		return i.Idempotent()
	}
	return p.Idempotent != nil && p.Idempotent(input)
}

// Decide returns the decision after an attempt, in the order of Couchbase's SDK-RFC 49
// (RFC 0049, Retry Handling). It is for callers that can wait, without a backend or
// budget. An operator calls the steps itself:
//
//  1. [Steps.FindReason] asks the classifier. If it panics, the decision is [Failed].
//  2. [Steps.DecideAtOnce] decides without the strategy, if it can.
//  3. Otherwise [Steps.Ask] asks the strategy, which may block.
//  4. [Steps.Conclude] reads the answer. If there is a retry, Conclude applies the
//     jitter, and cuts the delay to the remaining time: see [Decision.Capped].
//  5. The operator takes the retry from its budget if Decision.NeedsBudget is set.
//
// The first case that applies in a table counts:
//
//	DecideAtOnce                                        decision
//	there is no reason, or it is a rejection            Final
//	retries have ended, and the policy has reasons      Finishing
//	all retries for this reason were made               Refused
//	the reason is always retried                        by Conclude, with the controlled back-off
//	otherwise                                           the strategy is asked
//
//	Conclude                                            decision
//	the strategy returned an error or panicked          Failed
//	the strategy refused the retry                      Refused
//	the delay is negative                               Failed
//	retries have ended                                  Finishing
//	the delay is over MaxDelay                          Refused
//	MaxWaiting elements wait for a retry                TooManyWaiting
//	otherwise                                           Retried
//
// MaxDelay and the jitter do not apply to reasons that are always retried. A wait that a
// server demanded gets no jitter, either.
//
// Decide is for attempts that the policy considers. a.Remaining may be old if the caller
// reads the clock again before a retry. The caller handles runtime.Goexit of user code.
func (p *Steps[OUT]) Decide(ctx context.Context, a *predicates.Attempt[OUT], situation *Situation) Decision {
	_, err := p.FindReason(a)
	if err != nil {
		return Fail(a, err)
	}
	d, isDecided := p.DecideAtOnce(a, situation)
	if !isDecided {
		d = p.Conclude(a, p.Ask(ctx, a), situation)
	}
	return d
}

// FindReason asks the classifier, and sets a.Reason, a.Stage and a.Idempotent. isKnown is
// false, and a.Reason zero, if the classifier does not know the attempt or the policy
// does not consider it. A panic of user code is returned as an error.
func (p *Steps[OUT]) FindReason(a *predicates.Attempt[OUT]) (isKnown bool, err error) {
	a.Reason = predicates.Reason{} // a may be reused
	if !p.Considers(a.Err) {
		return false, nil
	}
	returned := false // cheaper than recover for each result
	defer func() {
		if !returned {
			err = guard.Recovered("strategies", recover())
		}
	}()
	if !p.ByAttempts { // otherwise a.Idempotent is not read
		a.Idempotent = a.Idempotent || p.IsIdempotent(a.Input) || isDeduplicated(a)
	}
	r, isKnown := p.Classify(a)
	if isKnown {
		a.Reason = r
	}
	returned = true
	return isKnown, nil
}

// FindReasonOfFailure returns the reason to report if the element ends with this attempt.
// isKnown is the answer of FindReason.
//
// If the policy has reasons and the classifier knows the attempt, it is a.Reason.
// Otherwise it is the error's own reason, or zero. An error has a reason by
// predicates.WithReason, by the status of an HTTP response, or as an error of a
// connection. If such an error proves a stage, a.Stage is set.
func (p *Steps[OUT]) FindReasonOfFailure(a *predicates.Attempt[OUT], isKnown bool) predicates.Reason {
	hasReasons := !p.ByAttempts
	isClassified := isKnown && hasReasons
	mayAskError := a.Err != nil && p.ReasonOfError != nil && mayHaveReason(a.Err)
	switch {
	case !isClassified && mayAskError:
		return p.askError(a, isKnown)
	case hasReasons:
		return a.Reason // zero if the classifier does not know it
	}
	return predicates.Reason{}
}

// askError returns the own reason of an attempt's error, or zero. If isKnown is set, a
// FLIP-232 predicate asks for a retry, so a rejection becomes an ordinary reason with the
// same name.
//
// If the error's methods panic, it has no reason. runtime.Goexit in them ends the run
// (law A6).
func (p *Steps[OUT]) askError(a *predicates.Attempt[OUT], isKnown bool) (reason predicates.Reason) {
	defer func() {
		if recover() != nil {
			reason = predicates.Reason{}
		}
	}()
	found, ok := p.ReasonOfError(a)
	if !ok {
		return predicates.Reason{}
	}
	if isKnown && found.IsRejection() {
		return predicates.NewReason(found.Name(), true, false)
	}
	return found
}

// Considers reports whether the policy considers attempts that end with err, which may be
// nil. Others are final.
func (p *Steps[OUT]) Considers(err error) bool {
	if err == nil {
		return p.ConsidersResults
	}
	return p.ConsidersErrors
}

// AllowsRepeat reports whether the call may be repeated although the operator has not
// retried it: a FLIP-232 predicate has asked for a retry. noRetry is the reason against
// the retry.
func (p *Steps[OUT]) AllowsRepeat(noRetry NoRetryReason) bool {
	return p.ByAttempts && hadReason(noRetry)
}

// FindPushback returns the wait that a server demands, or 0, or [Never]. A panic of the
// error or of a result is returned as an error.
func FindPushback[OUT any](a *predicates.Attempt[OUT]) (pushback time.Duration, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = guard.Recovered("strategies", value)
		}
	}()
	pushback, _ = PushbackOf(a)
	return pushback, nil
}

// DecideAtOnce decides without the strategy if it can. Otherwise isDecided is false.
func (p *Steps[OUT]) DecideAtOnce(a *predicates.Attempt[OUT], situation *Situation) (d Decision, isDecided bool) {
	d = Decision{Reason: a.Reason, Err: a.Err}
	if a.Reason.IsZero() || a.Reason.IsRejection() {
		return d, true
	}
	if a.Stage == predicates.Unreported {
		a.Stage = predicates.NetworkTime // a request may have been sent
	}
	switch {
	case situation.Finishing && !p.ByAttempts: // for a FLIP-232 strategy, Conclude decides this
		d.NoRetryReason = Finishing
		return d, true
	case len(p.MaxRetries) > 0 && p.isUsedUp(a):
		d.NoRetryReason = Refused
		return d, true
	case a.Reason.AlwaysRetry():
		answer := Answer{Action: Action{Retry: true, Delay: ControlledBackoff(a.Retries())}}
		return p.Conclude(a, answer, situation), true
	}
	return d, false
}

// isUsedUp reports whether all retries for the attempt's reason were made.
func (p *Steps[OUT]) isUsedUp(a *predicates.Attempt[OUT]) bool {
	i := p.LimitOf(a.Reason)
	return i >= 0 && a.ReasonRetries >= p.MaxRetries[i].Retries
}

// isDeduplicated reports whether all servers of a call recognise repeated requests (law
// X1).
func isDeduplicated[OUT any](a *predicates.Attempt[OUT]) bool {
	attempt, ok := a.Value(ctxkey.Stage{}).(deduplicatedAttempt)
	return ok && attempt.Deduplicated()
}

// deduplicatedAttempt is the attempt of an operator: a call.Stages.
type deduplicatedAttempt interface{ Deduplicated() bool }

// Ask asks the strategy, which may block unless p.AtOnce is set. A panic becomes the
// answer's error. Ask is safe for concurrent use if the strategy is.
func (p *Steps[OUT]) Ask(ctx context.Context, a *predicates.Attempt[OUT]) (answer Answer) {
	defer func() {
		if value := recover(); value != nil {
			answer = Answer{Err: guard.Recovered("strategies", value)}
		}
	}()
	answer.Action, answer.Err = p.Strategy(ctx, a)
	return answer
}

// Conclude returns the decision after the strategy's answer.
func (p *Steps[OUT]) Conclude(a *predicates.Attempt[OUT], answer Answer, situation *Situation) Decision {
	action, d := answer.Action, Decision{Reason: a.Reason, Err: a.Err}
	if action.Err != nil {
		d.Err = action.Err
	}
	isAlways := d.Reason.AlwaysRetry()
	switch {
	case answer.Err != nil:
		return Fail(a, answer.Err)
	case !action.Retry:
		d.NoRetryReason = Refused
		return d
	case action.Delay < 0:
		return Fail(a, fmt.Errorf("strategies: %T: negative delay: %v", p.Given, action.Delay))
	case situation.Finishing:
		d.NoRetryReason = Finishing
		return d
	case p.MaxDelay > 0 && action.Delay > p.MaxDelay && !isAlways:
		d.NoRetryReason = Refused
		return d
	case p.MaxWaiting > 0 && situation.Waiting >= p.MaxWaiting:
		d.NoRetryReason = TooManyWaiting
		return d
	}
	delay := action.Delay
	switch {
	case action.Demanded:
		d.Demanded = delay
	case p.Jitter != nil && situation.Random != nil && !isAlways: // RFC 0049 fixes the controlled back-off
		var err error
		delay, err = p.spread(delay, situation.Random)
		if err != nil {
			return Fail(a, err)
		}
	}
	if delay >= a.Remaining { // law A5
		delay, d.Capped = max(0, a.Remaining), true
	}
	d.NoRetryReason = Retried
	d.Delay = delay
	d.Before = action.Before
	d.NeedsBudget = !isAlways && !d.Capped
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

// Spread returns base with jitter, which may be nil. Negative delays become 0.
func Spread(jitter func(time.Duration, *rand.Rand) time.Duration, base time.Duration, random *rand.Rand) time.Duration {
	base = max(0, base)
	if jitter == nil {
		return base
	}
	return max(0, jitter(base, random))
}

// Fail returns the decision if the policy has failed with err.
func Fail[OUT any](a *predicates.Attempt[OUT], err error) Decision {
	return Decision{NoRetryReason: Failed, Reason: a.Reason, Err: guard.Join(err, a.Err)}
}
