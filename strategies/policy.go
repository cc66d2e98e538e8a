package strategies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// Policy defines the retries of an operator: a classifier that finds the reason of an
// outcome, a strategy that decides about it, and limits for any strategy.
//
//	                    ┌ no reason, rejection ────────────────────────────────▶ end
//	outcome ─▶ classify ┤ the operator has stopped retrying ───────────────────▶ end
//	                    │ always retried ─▶ controlled back-off ──┐
//	                    └ otherwise ─▶ strategy ─▶ yes ─▶ jitter ─▶ cap ─▶ next attempt
//	                                       └ no, error, panic ─────────────────▶ end
//
// End means that the element ends with the outcome. The methods return a changed copy. A
// Policy is safe for concurrent use if its classifier and its strategy are.
// strategiestest.Decide shows its decisions.
//
// To change its decisions, override Decide of a [ReasonStrategy], as [BestEffortStrategy]
// shows; a type that embeds a *Policy is not a policy.
type Policy[OUT any] struct {
	held[OUT]
	classify predicates.Classifier[OUT] // the argument of ReasonAware
	harmless []error
	strategy ReasonStrategy[OUT] // nil for an AsyncRetryStrategy
}

// held makes the steps of a policy accessible to operators.
type held[OUT any] = decision.Held[OUT]

func (p *Policy[OUT]) steps() *decision.Steps[OUT] { return decision.StepsOf[OUT](p) }

// Retry decides which outcomes are retried, and when: it is an [AsyncRetryStrategy],
// which decides by the number of attempts, or a [*Policy], which decides by reasons.
type Retry[OUT any] interface {
	// RetryPredicate returns the predicates of outcomes that deserve another attempt, or
	// nil for never.
	RetryPredicate() predicates.AsyncRetryPredicate[OUT]
}

var _ Retry[any] = (*Policy[any])(nil)

// ReasonAware returns a policy with a classifier, which finds the reasons, and a
// strategy, which decides about them:
//
//	op := asyncop.OrderedWaitWithRetry(call, 5*time.Second, 1000,
//		strategies.ReasonAware(httpretry.Classifier[Row](), strategies.BestEffort[Row]()))
//
// classify sees joined errors one by one: see [predicates.Classifier]. A nil strategy
// means [BestEffort].
//
// A delay that a server demands replaces the delay of the strategy ([HonorPushback]),
// unless [Policy.IgnorePushback] switches that off. ReasonAware panics if classify is
// nil.
func ReasonAware[OUT any](classify predicates.Classifier[OUT], strategy ReasonStrategy[OUT]) *Policy[OUT] {
	mustNotBeNil("ReasonAware", classify)
	if guard.IsNil(strategy) {
		strategy = BestEffort[OUT]()
	}
	return &Policy[OUT]{classify: classify, strategy: strategy, held: decision.Hold(decision.Steps[OUT]{
		Classify: decision.EachError(classify), ConsidersResults: true, ConsidersErrors: true, ReasonOfError: reasonOfError[OUT](),
		Strategy: asking(HonorPushback(strategy)), Given: strategy, AtOnce: decidesAtOnce(strategy),
	})}
}

func asking[OUT any](s ReasonStrategy[OUT]) func(context.Context, *predicates.Attempt[OUT]) (decision.Action, error) {
	return func(ctx context.Context, a *predicates.Attempt[OUT]) (decision.Action, error) {
		action, err := s.Decide(ctx, a)
		return decision.Action(action), err
	}
}

// PolicyOf returns retry itself if it is a policy, otherwise a policy that follows the
// strategy, whose predicates and [Jitter] it reads once. Use it to limit the waiting
// elements:
//
//	strategies.PolicyOf(strategy).WithMaxWaiting(100)
//
// PolicyOf panics if retry is nil, or neither a *Policy nor an [AsyncRetryStrategy].
func PolicyOf[OUT any](retry Retry[OUT]) *Policy[OUT] {
	mustNotBeNil("PolicyOf", retry)
	switch r := retry.(type) {
	case *Policy[OUT]:
		return r
	case AsyncRetryStrategy[OUT]:
		return byAttempts(r)
	}
	panic(fmt.Sprintf("strategies: PolicyOf: %T is neither a *Policy nor an AsyncRetryStrategy", retry))
}

func byAttempts[OUT any](strategy AsyncRetryStrategy[OUT]) *Policy[OUT] {
	_, isNoRetry := strategy.(noRetry[OUT])
	p := &Policy[OUT]{held: decision.Hold(decision.Steps[OUT]{
		Strategy: askingByAttempts(strategy), Given: strategy, AtOnce: true, ByAttempts: true, NoRetry: isNoRetry,
		ReasonOfError: reasonOfError[OUT](),
	})}
	pair := strategy.RetryPredicate()
	if guard.IsNil(pair) {
		return p
	}
	// An operator ignores later changes.
	pair = predicates.RetryIf(pair.ResultPredicate(), pair.ExceptionPredicate())
	p.steps().ConsidersResults, p.steps().ConsidersErrors = pair.ResultPredicate() != nil, pair.ExceptionPredicate() != nil
	if p.steps().ConsidersResults || p.steps().ConsidersErrors {
		p.steps().Classify = byPredicates(pair.ResultPredicate(), pair.ExceptionPredicate())
	}
	if j, ok := strategy.(jittered); ok {
		p.steps().Jitter = j.Jitter()
	}
	return p
}

func reasonOfError[OUT any]() predicates.Classifier[OUT] {
	return decision.EachError(predicates.Classifiers(predicates.Named[OUT](), decision.NamedErrors[OUT]))
}

type jittered interface{ Jitter() Jitter }

var _ jittered = (*settings[any, any])(nil)

// The reasons of a strategy without reasons. A result proves an answer; the call of an
// error may have been lost in flight.
var (
	resultMatched    = predicates.NewReason("RESULT_MATCHED", true, false)
	exceptionMatched = predicates.NewReason("EXCEPTION_MATCHED", false, false)
)

// byPredicates makes a classifier of the predicates, which may be nil. It does not chain
// classifiers, since it is called for every result.
func byPredicates[OUT any](
	result predicates.ResultPredicate[OUT], exception predicates.ExceptionPredicate,
) predicates.Classifier[OUT] {
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Err != nil {
			return exceptionMatched, exception != nil && exception(a.Err)
		}
		return resultMatched, result != nil && result(a.Results)
	}
}

// askingByAttempts returns a function that calls CanRetry and BackoffTime of s. As in
// FLIP-232, reason, idempotence and pushbacks do not matter.
func askingByAttempts[OUT any](
	s AsyncRetryStrategy[OUT],
) func(context.Context, *predicates.Attempt[OUT]) (decision.Action, error) {
	return func(_ context.Context, a *predicates.Attempt[OUT]) (decision.Action, error) {
		if !s.CanRetry(a.Number) {
			return decision.Action{}, nil
		}
		base := s.BackoffTime(a.Number)
		if base < 0 {
			return decision.Action{}, fmt.Errorf("strategies: %T: negative BackoffTime(%d): %v", s, a.Number, base)
		}
		return decision.Action{Retry: true, Delay: base}, nil
	}
}

// WithJitter returns a copy of p whose delays are spread by jitter, except demanded
// delays and delays of reasons that are always retried. Nil means no jitter.
func (p *Policy[OUT]) WithJitter(jitter Jitter) *Policy[OUT] {
	c := *p
	c.steps().Jitter = jitter
	return &c
}

// WithMaxWaiting returns a copy of p with which at most n elements wait for a retry.
// Further elements are not retried for any reason. The default is 0: only the operator's
// capacity limits them. It panics if n is negative.
func (p *Policy[OUT]) WithMaxWaiting(n int) *Policy[OUT] {
	if n < 0 {
		panic(fmt.Sprintf("strategies: WithMaxWaiting: negative number of elements: %d", n))
	}
	c := *p
	c.steps().MaxWaiting = n
	return &c
}

// WithMaxRetriesFor returns a copy of p with which an element is retried at most n times
// for this reason. After that its retry is [Refused]. Retries for other reasons do not
// count. Within the limit, the strategy decides:
//
//	strategies.ReasonAware(classify, nil).
//		WithMaxRetriesFor(badAnswer, 2).
//		WithMaxRetriesFor(httpretry.InternalServerError, 5) // and a 503 until the timeout
//
// At a backend, a retry after an outage or a throttle (429) does not count. A restored
// element begins with 0 retries. The limit also holds for reasons that are always
// retried. WithMaxRetriesFor replaces an earlier limit for the reason. It panics if
// reason is zero or a rejection, if n is negative, or for a policy without reasons
// ([PolicyOf]).
func (p *Policy[OUT]) WithMaxRetriesFor(reason predicates.Reason, n int) *Policy[OUT] {
	switch {
	case p.strategy == nil:
		panic("strategies: WithMaxRetriesFor: the policy has no reasons: make it by ReasonAware")
	case reason.IsZero() || reason.IsRejection():
		panic(fmt.Sprintf("strategies: WithMaxRetriesFor: %v is not a reason for a retry", reason))
	case n < 0:
		panic(fmt.Sprintf("strategies: WithMaxRetriesFor: negative number of retries for %v: %d", reason, n))
	}
	c := *p
	c.steps().MaxRetries = slices.Clone(p.steps().MaxRetries)
	limit := decision.MaxRetriesFor{Reason: reason, Retries: n}
	i := p.steps().LimitOf(reason)
	if i >= 0 {
		c.steps().MaxRetries[i] = limit
	} else {
		c.steps().MaxRetries = append(c.steps().MaxRetries, limit)
	}
	return &c
}

// WithMaxDelay returns a copy of p that refuses a retry with a delay, before jitter, of
// more than d: [Refused]. That includes delays that a server demands. Reasons that are
// always retried are not limited. So an element with a long wait leaves the operator, for
// a layer (delivery.Queue), and its slot is free. The default is 0: only the element's
// timeout limits the delay. It panics if d is negative.
func (p *Policy[OUT]) WithMaxDelay(d time.Duration) *Policy[OUT] {
	if d < 0 {
		panic(fmt.Sprintf("strategies: WithMaxDelay: negative delay: %v", d))
	}
	c := *p
	c.steps().MaxDelay = d
	return &c
}

// Idempotent returns a copy of p whose calls may all happen twice, except those of
// elements whose method Idempotent returns false ([predicates.Idempotent]).
func (p *Policy[OUT]) Idempotent() *Policy[OUT] {
	return p.IdempotentIf(func(any) bool { return true })
}

// IdempotentIf returns a copy of p whose calls may happen twice for inputs for which
// idempotent returns true:
//
//	policy.IdempotentIf(func(input any) bool { r, ok := input.(request); return ok && r.Method == "GET" })
//
// The default is nil: no call may happen twice.
//
// The method of an element that implements [predicates.Idempotent] decides instead.
// idempotent must not block, and is called from several goroutines at once.
func (p *Policy[OUT]) IdempotentIf(idempotent func(input any) bool) *Policy[OUT] {
	c := *p
	c.steps().Idempotent = idempotent
	return &c
}

// Harmless returns a copy of p that ignores these errors if a call joins them with other
// errors, such as the sentinel in fmt.Errorf("%w: %w", ErrLookup, err). Other errors that
// the classifier does not know prevent the repetition of calls that must not happen
// twice: see [predicates.Classifier]. Harmless has no effect on a FLIP-232 strategy,
// whose predicates see the joined error. It panics if an error is nil.
func (p *Policy[OUT]) Harmless(errs ...error) *Policy[OUT] {
	for i, err := range errs {
		if err == nil {
			panic(fmt.Sprintf("strategies: Harmless: nil error at index %d", i))
		}
	}
	c := *p
	if p.strategy != nil {
		c.harmless = append(slices.Clip(p.harmless), errs...)
		c.steps().Classify = decision.EachError(p.classify, c.harmless...)
	}
	return &c
}

// IgnorePushback returns a copy of p that ignores demanded delays, unless its strategy
// obeys them. See [HonorPushback].
func (p *Policy[OUT]) IgnorePushback() *Policy[OUT] {
	c := *p
	if p.strategy != nil {
		c.steps().Strategy = asking(p.strategy)
	}
	return &c
}

// Immediate returns a copy of p and promises that its strategy never blocks. An operator
// then calls the strategy on its loop, never concurrently, which saves a goroutine. Types
// that embed a strategy of this package need it; the strategies do not.
func (p *Policy[OUT]) Immediate() *Policy[OUT] {
	c := *p
	c.steps().AtOnce = true
	return &c
}

// ErrorsOnly returns a copy of p that accepts all results without calling the classifier.
// That saves time if the classifier never returns a reason for results.
func (p *Policy[OUT]) ErrorsOnly() *Policy[OUT] {
	c := *p
	c.steps().ConsidersResults = false
	return &c
}

// RetryPredicate returns predicates of the outcomes for which p has a reason that is not
// a rejection. The classifier does not find input, stage or history, and the strategy is
// not asked. The result is nil if p ignores all outcomes.
func (p *Policy[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	deserves := func(a *predicates.Attempt[OUT]) bool {
		reason, known := p.steps().Classify(a)
		return known && !reason.IsZero() && !reason.IsRejection()
	}
	var result predicates.ResultPredicate[OUT]
	var exception predicates.ExceptionPredicate
	if p.steps().ConsidersResults {
		result = func(results []OUT) bool { return deserves(&predicates.Attempt[OUT]{Number: 1, Results: results}) }
	}
	if p.steps().ConsidersErrors {
		exception = func(err error) bool { return deserves(&predicates.Attempt[OUT]{Number: 1, Err: err}) }
	}
	if result == nil && exception == nil {
		return nil
	}
	return predicates.RetryIf(result, exception)
}

func mustNotBeNil(caller string, v any) {
	if guard.IsNil(v) {
		panic(fmt.Sprintf("strategies: %s: nil %T", caller, v))
	}
}
