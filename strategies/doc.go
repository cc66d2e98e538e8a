// Package strategies says when to try again: how often an element may be
// retried and how long it waits before each retry.
//
// # Vocabulary
//
// An attempt is one call of the user's function for an element. Attempts count
// from 1; a retry is any attempt but the first, so an element with r retries
// makes r+1 calls. A strategy is always asked with the number of attempts made
// so far: 1 means that the first call has just ended in a way the predicates of
// the strategy (package predicates) want tried again.
//
//	strategy             retries      delay after attempt n
//	NoRetry              none         –
//	FixedDelay           maxRetries   delay
//	ExponentialBackoff   maxRetries   min(initial × multiplierⁿ⁻¹, max)
//
// [Unlimited] retries go on until the element's timeout ends them. A [Jitter]
// spreads the delays at random, so that elements that failed together do not
// return together.
//
// # Guarantees
//
// CanRetry and BackoffTime of the strategies here are pure functions of the
// attempt: one strategy serves all elements of an operator, and no element
// feels the others. The randomness of a jitter is applied by the operator, from
// a source that tests can replace, so a strategy itself stays predictable.
// Delays are exact to the nanosecond where a float64 is, and never overflow.
//
// A strategy without a predicate retries nothing. Wrong arguments are a
// programmer's error: the constructors panic and name argument and value.
//
// # Coming from Flink
//
// The interface is that of FLIP-232. What Flink calls maxAttempts is called
// maxRetries here, since it counts retries there as well. Flink's exponential
// strategy keeps the last delay in one field shared by all records; here it is
// computed. Flink cuts delays to milliseconds and checks little; here 0 retries
// and a delay of 0 are legal, negative ones are not.
//
// # Reasons
//
// A [ReasonStrategy], that of RFC 0049 of the Couchbase SDKs, decides over a reason
// that a classifier named, and sees the whole attempt. It may block, answers with
// an [Action] (retry or not, after a delay of which 0 is one, with something to do
// first, with another error), and is never asked about reasons that are always
// retried. [BestEffort] is the default and the one to embed; [ReasonAware] makes a
// [Policy] of classifier and strategy, in which a delay that a server demands counts
// ([HonorPushback]), which is what an operator takes; the policy adds idempotence, jitter, a
// [Budget] and a bound on waiting elements. [PolicyOf] makes one of a FLIP-232
// strategy, so that there is one mechanism and everything a policy adds is there
// for those as well. The other way, [WithoutReasons], is open only to what depends
// on attempts alone.
//
// # Your own strategy
//
// Implement [AsyncRetryStrategy], build its predicates with predicates.RetryIf
// and run the conformance suite in strategiestest over it. What else an operator
// may learn from a strategy it asks for by optional interfaces; [Jittered] is
// one. Embedding a strategy of this package keeps them.
//
// # Concurrency
//
// Strategies here never change after construction and are safe for concurrent
// use; With and RetryIf methods return a changed copy. The predicates within are
// as safe as their author made them.
//
// # Use
//
//	strategies.ExponentialBackoff[Row](5, 100*time.Millisecond, 2*time.Second, 2).
//		RetryIfResult(predicates.EmptyResult).
//		RetryIfException(predicates.HasException).
//		WithJitter(strategies.FullJitter)
package strategies
