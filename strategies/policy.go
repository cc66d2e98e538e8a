package strategies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Policy has all that an operator needs for retries: a classifier that finds the reason
// of an outcome, a strategy that decides about it, and bounds that hold for any strategy.
// A strategy without reasons is a policy, too ([PolicyOf]).
//
//	                    ┌ none, rejection ──────────────────────────▶ end
//	outcome ─▶ classify ┤ the operator has stopped to retry ────────▶ end
//	                    │ always ─▶ controlled back-off ──┐
//	                    └ else ─▶ strategy ─▶ again ─▶ jitter ─▶ cap ─▶ retry
//	                                └ no, error, panic ───────────▶ end
//
// End means that the element ends with the outcome. The methods return a changed copy: a
// Policy itself never changes. It is safe for concurrent use if its classifier and its
// strategy are. To see what a policy does, use strategiestest.Decide.
//
// The constructors of an operator take a *Policy or an [AsyncRetryStrategy]: both are a
// [Retry]. To change the decisions of a policy, override Decide of a [ReasonStrategy], as
// [BestEffortStrategy] shows; a type that embeds a *Policy is not a policy.
type Policy[OUT any] struct {
	held[OUT]
	classify predicates.Classifier[OUT] // that of ReasonAware
	harmless []error
	strategy ReasonStrategy[OUT] // nil: it was made of an AsyncRetryStrategy
}

type held[OUT any] = decision.Held[OUT] // operators find the steps of a policy by it

func (p *Policy[OUT]) steps() *decision.Steps[OUT] { return decision.StepsOf[OUT](p) }

// Retry decides what is retried, and when: it is an [AsyncRetryStrategy], which goes by
// the number of attempts, or a [*Policy], which goes by reasons. Operators take either.
type Retry[OUT any] interface {
	// RetryPredicate returns the predicates of outcomes that deserve another attempt;
	// nil: none.
	RetryPredicate() predicates.AsyncRetryPredicate[OUT]
}

var _ Retry[any] = (*Policy[any])(nil)

// ReasonAware returns the policy in which classify names the reasons and strategy decides
// about them. Pass it to an operator in place of a FLIP-232 strategy:
//
//	op := asyncop.OrderedWaitWithRetry(call, 5*time.Second, 1000,
//		strategies.ReasonAware(couchbase.Classifier[Row](nil), strategies.BestEffort[Row]()))
//
// classify sees each of joined errors by itself: see [predicates.Classifier]. A nil
// strategy stands for [BestEffort].
//
// A delay that a server demands, such as Retry-After of HTTP or the pushback of gRPC,
// takes the place of the strategy's ([HonorPushback]), unless [Policy.IgnorePushback]
// switches that off. ReasonAware panics if classify is nil.
func ReasonAware[OUT any](classify predicates.Classifier[OUT], strategy ReasonStrategy[OUT]) *Policy[OUT] {
	mustNotBeNil("ReasonAware", classify)
	if guard.IsNil(strategy) {
		strategy = BestEffort[OUT]()
	}
	return &Policy[OUT]{classify: classify, strategy: strategy, held: decision.Hold(decision.Steps[OUT]{
		Classify: decision.EachError(classify), Results: true, Errors: true, Named: named[OUT](),
		Strategy: asking(HonorPushback(strategy)), Asked: strategy, AtOnce: decidesAtOnce(strategy),
	})}
}

// asking returns the question to s.
func asking[OUT any](s ReasonStrategy[OUT]) func(context.Context, *predicates.Attempt[OUT]) (decision.Action, error) {
	return func(ctx context.Context, a *predicates.Attempt[OUT]) (decision.Action, error) {
		action, err := s.Decide(ctx, a)
		return decision.Action(action), err
	}
}

// PolicyOf returns retry itself if it is a policy, else a policy that follows the
// strategy: it reads its predicates and its [Jitter] here, once, and CanRetry and
// BackoffTime decide. Use it to give such a strategy a bound on waiting elements:
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

// byAttempts makes a policy of a strategy without reasons.
func byAttempts[OUT any](strategy AsyncRetryStrategy[OUT]) *Policy[OUT] {
	_, isNoRetry := strategy.(noRetry[OUT])
	p := &Policy[OUT]{held: decision.Hold(decision.Steps[OUT]{
		Strategy: askingByAttempts(strategy), Asked: strategy, AtOnce: true, ByAttempts: true, NoRetry: isNoRetry,
		Named: named[OUT](),
	})}
	pair := strategy.RetryPredicate()
	if guard.IsNil(pair) {
		return p
	}
	// Read once: a later, different answer has no defined effect.
	pair = predicates.RetryIf(pair.ResultPredicate(), pair.ExceptionPredicate())
	p.steps().Results, p.steps().Errors = pair.ResultPredicate() != nil, pair.ExceptionPredicate() != nil
	if p.steps().Results || p.steps().Errors {
		p.steps().Classify = byPredicates(pair.ResultPredicate(), pair.ExceptionPredicate())
	}
	if j, ok := strategy.(interface{ Jitter() Jitter }); ok {
		p.steps().Jitter = j.Jitter()
	}
	return p
}

// named returns the classifier for failures that the policy's own classifier does not know, or
// that has none. It does not decide about retries.
func named[OUT any]() predicates.Classifier[OUT] {
	return decision.EachError(predicates.Classifiers(predicates.Named[OUT](), httpretry.Classifier[OUT]()))
}

// The reasons of a strategy without reasons. A result proves that the call was answered;
// an error may be that of a call lost in flight.
var (
	resultMatched    = predicates.NewReason("RESULT_MATCHED", true, false)
	exceptionMatched = predicates.NewReason("EXCEPTION_MATCHED", false, false)
)

// byPredicates makes a classifier of the predicates, nil ones of which match nothing. All
// results pass here, so it is no chain.
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

// askingByAttempts returns the question to s, for whatever reason. What FLIP-232 retries,
// it retries: idempotence and what servers demand do not count.
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

// WithJitter returns a copy of p whose delays are spread by jitter, except delays that a
// server demands and delays of reasons that are always retried. Nil means none.
func (p *Policy[OUT]) WithJitter(jitter Jitter) *Policy[OUT] {
	c := *p
	c.steps().Jitter = jitter
	return &c
}

// WithMaxWaiting returns a copy of p under which at most n elements wait for a retry at
// the same time. A further element is not retried, for whatever reason. 0, the default:
// only the operator's capacity bounds them. It panics if n is negative.
func (p *Policy[OUT]) WithMaxWaiting(n int) *Policy[OUT] {
	if n < 0 {
		panic(fmt.Sprintf("strategies: WithMaxWaiting: negative number of elements: %d", n))
	}
	c := *p
	c.steps().MaxWaiting = n
	return &c
}

// WithMaxRetriesFor returns a copy of p under which an element is retried at most n times
// for this reason. Then the reason is [Refused]. Retries for other reasons do not count,
// and have the limits of the strategy and of the element's timeout:
//
//	strategies.ReasonAware(classify, nil).
//		WithMaxRetriesFor(badAnswer, 2).
//		WithMaxRetriesFor(httpretry.InternalServerError, 5) // and a 503 until the timeout
//
// At a backend, a retry after an outage or a throttle (429) does not count. A restored
// element begins with 0 retries. The strategy is asked within the limit. The limit also
// holds for reasons that are always retried. With the strategy's own limit (MaxRetries),
// the lower one counts. WithMaxRetriesFor replaces an earlier limit for the reason. It
// panics if reason is zero or a rejection, if n is negative, or for a policy without
// reasons ([PolicyOf]).
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

// WithMaxDelay returns a copy of p under which a retry that would begin later than after
// d is not made: the reason is [Refused]. The delay is the strategy's, or the delay that
// a server demands, without jitter. Reasons that are always retried are not bounded. So
// an element that has to wait for long leaves the operator, for a layer (delivery.Queue),
// and its slot is free. 0, the default: only the element's timeout bounds it. It panics
// if d is negative.
func (p *Policy[OUT]) WithMaxDelay(d time.Duration) *Policy[OUT] {
	if d < 0 {
		panic(fmt.Sprintf("strategies: WithMaxDelay: negative delay: %v", d))
	}
	c := *p
	c.steps().MaxDelay = d
	return &c
}

// Idempotent returns a copy of p whose calls may all happen twice, except the calls of
// elements that say no ([predicates.Idempotent]).
func (p *Policy[OUT]) Idempotent() *Policy[OUT] {
	return p.IdempotentIf(func(any) bool { return true })
}

// IdempotentIf returns a copy of p whose calls may happen twice for the inputs for which
// idempotent is true:
//
//	policy.IdempotentIf(func(input any) bool { r, ok := input.(request); return ok && r.Method == "GET" })
//
// The default is nil: no call may happen twice.
//
// An element may speak for itself ([predicates.Idempotent]), and idempotent is then not
// called: whatever the policy says, its call may happen twice if the element says yes,
// and never if it says no. idempotent must not block, and is called from several
// goroutines at once.
func (p *Policy[OUT]) IdempotentIf(idempotent func(input any) bool) *Policy[OUT] {
	c := *p
	c.steps().Idempotent = idempotent
	return &c
}

// Harmless returns a copy of p that ignores these errors where a call joins them with
// others, such as the sentinel in fmt.Errorf("%w: %w", ErrLookup, err). An error that the
// classifier does not know otherwise counts as a request that may have had an effect, and
// calls that must not happen twice are not repeated. See [predicates.Classifier]. It does
// not apply to a FLIP-232 strategy, whose predicates see the joined error. It panics if
// an error is nil.
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

// IgnorePushback returns a copy of p that ignores delays that servers demand, unless its
// strategy obeys them itself. See [HonorPushback].
func (p *Policy[OUT]) IgnorePushback() *Policy[OUT] {
	c := *p
	if p.strategy != nil {
		c.steps().Strategy = asking(p.strategy)
	}
	return &c
}

// Immediate returns a copy of p with the promise that its strategy never blocks. An
// operator then calls the strategy on its loop, never concurrently, which saves a
// goroutine. The strategies of this package do not need this promise; a type that embeds
// such a strategy does.
func (p *Policy[OUT]) Immediate() *Policy[OUT] {
	c := *p
	c.steps().AtOnce = true
	return &c
}

// ErrorsOnly returns a copy of p that looks at errors only and accepts all results
// unseen: that saves time if its classifier never names a reason for results.
func (p *Policy[OUT]) ErrorsOnly() *Policy[OUT] {
	c := *p
	c.steps().Results = false
	return &c
}

// RetryPredicate returns the outcomes for which p has a reason that is not a rejection.
// The strategy decides whether their elements are retried. The predicates see the outcome
// alone, so a classifier does not find input, stage or history. It is nil if p ignores
// all outcomes.
func (p *Policy[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	deserves := func(a *predicates.Attempt[OUT]) bool {
		reason, known := p.steps().Classify(a)
		return known && !reason.IsZero() && !reason.IsRejection()
	}
	var result predicates.ResultPredicate[OUT]
	var exception predicates.ExceptionPredicate
	if p.steps().Results {
		result = func(results []OUT) bool { return deserves(&predicates.Attempt[OUT]{Number: 1, Results: results}) }
	}
	if p.steps().Errors {
		exception = func(err error) bool { return deserves(&predicates.Attempt[OUT]{Number: 1, Err: err}) }
	}
	if result == nil && exception == nil {
		return nil
	}
	return predicates.RetryIf(result, exception)
}

// mustNotBeNil panics in caller's name if v is nil.
func mustNotBeNil(caller string, v any) {
	if guard.IsNil(v) {
		panic(fmt.Sprintf("strategies: %s: nil %T", caller, v))
	}
}
