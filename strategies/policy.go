package strategies

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/internal/nils"
	"github.com/weirflow/weir/predicates"
)

// Policy is everything an operator needs to know about retries: how to find the
// reason of an outcome, whom to ask about it, and the bounds that hold whoever is
// asked. There is one mechanism: a FLIP-232 strategy is a policy, too.
//
//	                    ┌ none, rejection ──────────────────────────▶ accept
//	outcome ─▶ classify ┤ nobody retries any more ──────────────────▶ accept
//	                    │ always ─▶ controlled back-off ──┐
//	                    └ else ─▶ strategy ─▶ again ─▶ jitter ─▶ cap ─▶ retry
//	                                └ no, error, panic ───────────▶ accept
//
// [ReasonAware] makes one of a classifier and a [ReasonStrategy], [PolicyOf] of
// whatever an operator was given. The methods that change something return a
// changed copy; a Policy itself never changes and is safe for concurrent use, as
// far as what it was built from is.
//
// A *Policy is an [AsyncRetryStrategy], so that it can be handed to the
// constructors of an operator. That is a way to carry it, not a conversion: code
// that knows FLIP-232 only, and does not call PolicyOf, sees a strategy that
// never retries, since what depends on reasons cannot be said without them.
//
// Do not embed a *Policy: an operator calls neither its CanRetry nor its
// BackoffTime, so to override them would do nothing. PolicyOf, and with it the
// constructors of operators, panic for such a type. Override Decide of a
// [ReasonStrategy] instead, as [BestEffortStrategy] shows.
type Policy[OUT any] struct {
	classify   predicates.Classifier[OUT] // nil: nothing is ever retried
	strategy   ReasonStrategy[OUT]
	asked      ReasonStrategy[OUT]     // strategy, with or without what servers demand
	flip       AsyncRetryStrategy[OUT] // what it was made of; nil: of a reason-aware strategy
	results    bool                    // results are looked at
	errors     bool                    // errors are looked at
	jitter     Jitter
	budget     *Budget
	maxWaiting int // 0: no bound
	idempotent func(input any) bool
}

var _ AsyncRetryStrategy[any] = (*Policy[any])(nil)

// ReasonAware returns the policy that lets classify name the reasons and strategy
// decide over them. It is handed to an operator in place of a FLIP-232 strategy:
//
//	op := asyncop.OrderedWaitWithRetry(call, 5*time.Second, 1000,
//		strategies.ReasonAware(couchbase.Classifier[Row](nil), strategies.BestEffort[Row]()))
//
// Of joined errors classify sees each by itself: see [predicates.EachError]. A nil
// strategy stands for [BestEffort].
//
// A delay that a server demands, such as Retry-After of HTTP or the pushback of
// gRPC, is heeded, whatever strategy: see [HonorPushback]. What strategy answers
// without it counts after [Policy.IgnorePushback]. ReasonAware panics if classify is
// nil.
func ReasonAware[OUT any](classify predicates.Classifier[OUT], strategy ReasonStrategy[OUT]) *Policy[OUT] {
	mustNotBeNil("ReasonAware", classify)
	if nils.Is(strategy) {
		strategy = BestEffort[OUT]()
	}
	return &Policy[OUT]{
		classify: predicates.EachError(classify), strategy: strategy, asked: HonorPushback(strategy), results: true, errors: true,
	}
}

// PolicyOf returns strategy as a policy: itself if it is one, else one that does
// what the FLIP-232 strategy does, without loss. Its predicates become
// the classifier ([predicates.ByPredicates]), CanRetry and BackoffTime decide,
// and its [Jitter] is applied. The predicate is read here and never again. A
// strategy without predicates, such as [NoRetry], makes a policy that considers
// nothing. PolicyOf panics if strategy is nil, or embeds a *Policy.
func PolicyOf[OUT any](strategy AsyncRetryStrategy[OUT]) *Policy[OUT] {
	mustNotBeNil("PolicyOf", strategy)
	switch s := strategy.(type) {
	case *Policy[OUT]:
		return s
	case interface{ isPolicy() }: // what it overrides would be ignored
		panic(fmt.Sprintf("strategies: PolicyOf: %T embeds a *Policy, whose methods an operator does not call: "+
			"hand over the Policy itself, and override Decide of its ReasonStrategy", strategy))
	}
	p := &Policy[OUT]{strategy: &attempts[OUT]{strategy}, flip: strategy}
	p.asked = p.strategy // what FLIP-232 decides, without loss
	pair := strategy.RetryPredicate()
	if nils.Is(pair) {
		return p
	}
	// Read once; what a changed answer would do is nobody's to guess.
	pair = predicates.RetryIf(pair.ResultPredicate(), pair.ExceptionPredicate())
	p.results, p.errors = pair.ResultPredicate() != nil, pair.ExceptionPredicate() != nil
	if p.results || p.errors {
		p.classify = predicates.ByPredicates(pair)
	}
	if j, ok := strategy.(Jittered); ok {
		p.jitter = j.Jitter()
	}
	return p
}

// WithJitter returns a copy of p whose delays are spread by jitter, those of
// reasons that are always retried and demanded ones excepted. Nil means none.
func (p *Policy[OUT]) WithJitter(jitter Jitter) *Policy[OUT] {
	c := *p
	c.jitter = jitter
	return &c
}

// WithBudget returns a copy of p whose retries must be covered by budget, which
// may be shared with other policies. Reasons that are always retried are not
// charged. Nil, the default, means no budget.
func (p *Policy[OUT]) WithBudget(budget *Budget) *Policy[OUT] {
	c := *p
	c.budget = budget
	return &c
}

// WithMaxWaiting returns a copy of p under which at most n elements wait for a
// retry at the same time; what would be one more is not retried, for whatever
// reason. 0, the default, means no bound but the operator's capacity. It panics
// if n is negative.
func (p *Policy[OUT]) WithMaxWaiting(n int) *Policy[OUT] {
	if n < 0 {
		panic(fmt.Sprintf("strategies: WithMaxWaiting: negative number of elements: %d", n))
	}
	c := *p
	c.maxWaiting = n
	return &c
}

// Idempotent returns a copy of p whose calls may all happen twice, except for
// elements that say themselves that theirs may not ([predicates.Idempotent]).
func (p *Policy[OUT]) Idempotent() *Policy[OUT] {
	return p.IdempotentIf(func(any) bool { return true })
}

// IdempotentIf returns a copy of p whose calls may happen twice for the inputs
// for which idempotent is true; see [predicates.OfInput] for a function of a type
// of its own. The default is nil: for none.
//
// An element may speak for itself ([predicates.Idempotent]), and idempotent is
// then not called: the call of one that says yes may happen twice, and that of one
// that says no never, whatever the policy says. idempotent must not block, and is
// called from several goroutines at once.
func (p *Policy[OUT]) IdempotentIf(idempotent func(input any) bool) *Policy[OUT] {
	c := *p
	c.idempotent = idempotent
	return &c
}

// Harmless returns a copy of p for which these errors say nothing about a request
// where a call joins them with others, such as the sentinel in
// fmt.Errorf("%w: %w", ErrLookup, err). An error that the classifier does not know
// otherwise counts as a request that may have had an effect, and calls that must not
// happen twice are not repeated. See [predicates.EachError]. It changes nothing for a
// FLIP-232 strategy, whose predicates see the joined error. It panics if an error is nil.
func (p *Policy[OUT]) Harmless(errs ...error) *Policy[OUT] {
	c := *p
	if p.flip == nil {
		c.classify = predicates.EachError(p.classify, errs...)
	}
	return &c
}

// IgnorePushback returns a copy of p that does not heed what servers demand, unless
// its strategy does. See [HonorPushback].
func (p *Policy[OUT]) IgnorePushback() *Policy[OUT] {
	c := *p
	c.asked = c.strategy
	return &c
}

// ErrorsOnly returns a copy of p that looks at errors only and accepts all
// results unseen: a saving where its classifier knows none.
func (p *Policy[OUT]) ErrorsOnly() *Policy[OUT] {
	c := *p
	c.results = false
	return &c
}

// Considers reports whether outcomes of this kind, errors or, with a nil err,
// results, are looked at; others are accepted without calling Judge.
func (p *Policy[OUT]) Considers(err error) bool {
	if err != nil {
		return p.errors
	}
	return p.results
}

// NeedsElement reports whether anything in p looks at more of an attempt than its
// number and outcome. If not, an operator may leave the rest of the view unset,
// except for Remaining.
func (p *Policy[OUT]) NeedsElement() bool { return p.flip == nil }

// DecidesAtOnce reports whether Ask is known not to block, so that it can be
// called where nothing may.
func (p *Policy[OUT]) DecidesAtOnce() bool { return DecidesAtOnce(p.strategy) }

// IsIdempotent reports whether the call for input may happen twice.
func (p *Policy[OUT]) IsIdempotent(input any) bool {
	if i, ok := input.(predicates.Idempotent); ok {
		return i.Idempotent()
	}
	return p.idempotent != nil && p.idempotent(input)
}

// Deposit is called by the operator for every first attempt: it earns the budget,
// if there is one, its fraction of a retry.
func (p *Policy[OUT]) Deposit() { p.budget.Deposit() }

// isPolicy marks a Policy, and types that embed one.
func (*Policy[OUT]) isPolicy() {}

// Unwrap returns the strategy that p asks, for [MaxRetriesOf].
func (p *Policy[OUT]) Unwrap() any {
	if p.flip != nil {
		return p.flip
	}
	return p.strategy
}

// Jitter implements [Jittered].
func (p *Policy[OUT]) Jitter() Jitter { return p.jitter }

// CanRetry implements [AsyncRetryStrategy]: the answer of the FLIP-232 strategy
// that p was made of, else false.
func (p *Policy[OUT]) CanRetry(currentAttempts int) bool {
	return p.flip != nil && p.flip.CanRetry(currentAttempts)
}

// BackoffTime implements [AsyncRetryStrategy]: the answer of the FLIP-232
// strategy that p was made of, else 0.
func (p *Policy[OUT]) BackoffTime(currentAttempts int) time.Duration {
	if p.flip == nil {
		return 0
	}
	return p.flip.BackoffTime(currentAttempts)
}

// RetryPredicate implements [AsyncRetryStrategy]: that of the FLIP-232 strategy
// that p was made of, else nil.
func (p *Policy[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	if p.flip == nil {
		return nil
	}
	return p.flip.RetryPredicate()
}

// mustNotBeNil panics in caller's name if v is nil.
func mustNotBeNil(caller string, v any) {
	if nils.Is(v) {
		panic(fmt.Sprintf("strategies: %s: nil %T", caller, v))
	}
}
