// Package strategies has retry strategies: how often an element may be retried and how
// long it waits before each retry.
//
//	strategies.ExponentialBackoff[Row](5, 100*time.Millisecond, 2*time.Second, 2).
//		RetryIfResult(predicates.EmptyResult).
//		RetryIfException(predicates.HasException).
//		WithJitter(strategies.FullJitter)
//
// # Attempts and retries
//
// An attempt is a call of the user's function for an element, counted from 1. A retry is
// any attempt but the first. A strategy is called with the number of attempts made so
// far, if its predicates (package predicates) ask for another.
//
//	strategy             retries      delay after attempt n
//	NoRetry              0            –
//	FixedDelay           maxRetries   delay
//	ExponentialBackoff   maxRetries   min(initial × multiplierⁿ⁻¹, max)
//
// [Unlimited] retries continue until the element's timeout. A [Jitter], applied by the
// operator, spreads the delays at random.
//
// A strategy without a predicate never retries. Constructors panic for wrong arguments.
//
// # Reasons
//
// Whether a call may be repeated depends on more than an error or results: was it sent,
// and may it happen twice? [ReasonAware] makes a [Policy] from a classifier (package
// predicates), which finds the reason of an outcome, and a [ReasonStrategy], which
// decides. An operator takes a strategy or a policy, as a [Retry]:
//
//	strategies.ReasonAware(httpretry.Classifier[Row](), strategies.BestEffort[Row]())
//
// [BestEffort] is the default, and the strategy to embed in your own. A policy also
// defines which calls may happen twice ([Policy.IdempotentIf]), and may limit the waiting
// elements. [PolicyOf] adds these limits to a strategy without reasons. The backend can
// limit the share of retries (backend.RetryBudget). The rules follow RFC 0049 of the
// Couchbase SDKs.
//
// # Your own strategy
//
// Implement [AsyncRetryStrategy], build its predicates with predicates.RetryIf, and run
// the conformance suite of package strategiestest over it. With reasons, implement
// [ReasonStrategy]; strategiestest.Decide shows what an operator does with it.
//
// # Coming from Flink
//
// The interface follows FLIP-232. Flink's maxAttempts, which counts retries, is called
// maxRetries here. Flink's exponential strategy keeps the last delay in a field shared by
// all records; here the delay is computed from the attempt.
//
// # Concurrency
//
// Strategies here never change and are safe for concurrent use. Setters return a changed
// copy.
package strategies
