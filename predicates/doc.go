// Package predicates has the predicates by which a retry strategy judges whether the outcome of an attempt deserves another try.
//
//	strategies.FixedDelay[Row](3, 100*time.Millisecond).
//		RetryIfResult(predicates.EmptyResult).
//		RetryIfException(predicates.AnyOf(
//			predicates.ErrorIs(io.ErrUnexpectedEOF),
//			predicates.ErrorAs(func(e net.Error) bool { return e.Timeout() })))
//
// # Vocabulary
//
// An outcome is the end of an attempt: results, or an error. A [ResultPredicate] judges all results of an attempt
// together, an [ExceptionPredicate] judges an error; true means "try again". Each sees only its own kind of outcome: results
// never reach an exception predicate, and nil never reaches it either. An [AsyncRetryPredicate] is a pair of both, where a nil
// predicate stands for never.
//
//	outcome              judged by              ready made
//	no results, results  ResultPredicate[OUT]   EmptyResult, AnyResult
//	error, panic         ExceptionPredicate     HasException, ErrorIs, ErrorAs
//
// [Not], [AnyOf] and [AllOf] build new predicates of either kind.
//
// # Guarantees
//
// The error predicates look through wrapping and joins as [errors.Is] and [errors.As] do. AnyOf and AllOf ask in the order given and stop as
// soon as the result is clear. Predicates do not keep state or change their arguments. A missing argument is a programmer's error: the
// constructor panics at once and names it, instead of every element failing later.
//
// # Reasons
//
// A [Classifier] says more than "again": it names the [Reason]. A reason says whether even a call that must not happen twice may be repeated,
// and whether it is repeated in any case. The classifier sees the whole [Attempt]: the element, the [Stage] in which it failed, whether the call
// is [Idempotent], the reasons so far ([ReasonSet]). It also names requests that were refused for good ([NewRejection]).
//
// [ByException], [ByResult] and [ByCode] make classifiers, [Named] reads the reason that a function gave to its error
// ([WithReason]), and [Classifiers] chains them. Ready-made classifiers are in httpretry, grpcretry, netretry and couchbase.
// strategies.ReasonAware hands a classifier to an operator.
//
// A function may make several requests and join their errors. Each is classified by itself, and the reason that allows least
// decides. An error that no classifier knows counts as a request that may have had an effect: see [Classifier].
//
// # Stages
//
// How far a call has come is known to its function ([ReportStage]), to the clients it uses ([ReportSent]) and, of a request that failed, to its
// error ([StageError]). The latest of them counts, which is the safe assumption. Reports find the attempt through the context; outside of an operator
// they are ignored.
//
// A request that its server recognises when it is repeated is reported as deduplicated
// ([WithDeduplicated]). A call may be repeated if all its requests are deduplicated.
//
// # Concurrency
//
// The predicates of this package are safe for concurrent use if the functions they were built from are. An operator calls its
// predicates in turn and they must not block; operators that share a predicate call it at the same time.
//
// # Types
//
// Types are inferred from any typed argument. Without such an argument, as in
// Not(EmptyResult), the row type has to be written: Not(EmptyResult[Row]).
package predicates
