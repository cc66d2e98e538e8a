// Package predicates has the predicates with which a retry strategy judges whether the
// outcome of an attempt deserves another try.
//
//	strategies.FixedDelay[Row](3, 100*time.Millisecond).
//		RetryIfResult(predicates.EmptyResult).
//		RetryIfException(predicates.AnyOf(
//			predicates.ErrorIs(io.ErrUnexpectedEOF),
//			predicates.ErrorAs(func(e net.Error) bool { return e.Timeout() })))
//
// # Vocabulary
//
// An outcome is the end of an attempt: results, or an error. A [ResultPredicate] judges
// all results of an attempt together, an [ExceptionPredicate] judges an error, which is
// never nil; true means "try again". An [AsyncRetryPredicate] is a pair of both, in which
// a nil predicate means never.
//
//	outcome              judged by              ready made
//	no results, results  ResultPredicate[OUT]   EmptyResult, AnyResult
//	error, panic         ExceptionPredicate     HasException, ErrorIs, ErrorAs
//
// [Not], [AnyOf] and [AllOf] build new predicates of either kind.
//
// # Guarantees
//
// The error predicates look through wrapping and joins as [errors.Is] and [errors.As] do.
// AnyOf and AllOf call the predicates in order and stop as soon as the result is clear.
// Predicates do not keep state or change their arguments. If an argument is missing, the
// constructor panics and names it.
//
// # Reasons
//
// A [Classifier] names the [Reason] of a retry. A reason defines whether even a call that
// must not happen twice may be repeated, and whether the call is always repeated. The
// classifier sees the whole [Attempt]: the element, the [Stage] in which it failed,
// whether the call is [Idempotent], the reasons so far ([ReasonSet]). It also identifies
// requests that were refused for good ([NewRejection]).
//
// [ByException], [ByResult] and [ByCode] make classifiers, [Named] reads the reason that
// a function has added to its error ([WithReason]), and [Classifiers] chains them. An
// error of [WithSnooze] is not judged: its call asks for a later time.
// Ready-made classifiers are in httpretry, grpcretry and netretry, and for clients of
// databases in modules of their own, such as ext/postgres, ext/couchbase and
// ext/hbase.
// strategies.ReasonAware makes a policy of a classifier, for an operator.
//
// A function may make several requests and join their errors. Each error is classified
// separately, and the reason that allows least decides. An error that no classifier knows
// counts as a request that may have had an effect: see [Classifier].
//
// # Stages
//
// The function of a call reports how far the call has come ([ReportStage]), its clients
// report their requests ([ReportSent]), and the error of a failed request may carry a
// stage ([StageError]). The latest stage counts, which is the safe assumption. Reports
// find the attempt through the context; outside of an operator they are ignored.
//
// A request whose server recognises a repetition is reported as deduplicated
// ([WithDeduplicated]). A call may be repeated if all its requests are deduplicated.
//
// # Concurrency
//
// The predicates of this package are safe for concurrent use if the functions they were
// built from are. An operator calls its predicates one at a time, and they must not
// block; operators that share a predicate call it concurrently.
//
// # Types
//
// Types are inferred from any typed argument. Without one, as in Not(EmptyResult), write
// the row type: Not(EmptyResult[Row]).
package predicates
