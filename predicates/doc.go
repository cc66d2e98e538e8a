// Package predicates has the predicates with which a retry strategy judges whether an
// attempt deserves another try.
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
// AnyOf and AllOf stop as soon as the result is clear. Predicates do not keep state or
// change their arguments. A constructor panics if an argument is missing.
//
// # Reasons
//
// A [Classifier] names the [Reason] of a retry. A reason defines whether even a call that
// must not happen twice may be repeated, and whether the call is always repeated. The
// classifier sees the whole [Attempt].
//
// [Named] reads the reason that a function has added to its error ([WithReason]). An
// error of [WithSnooze] is not judged: its call asks for a later time. Ready-made
// classifiers are in httpretry, grpcretry and netretry, and for clients of databases in
// modules such as ext/postgres, ext/couchbase and ext/hbase. strategies.ReasonAware makes
// a policy of a classifier.
//
// If a function joins the errors of several requests, the reason that allows least
// decides: see [Classifier].
//
// # Stages
//
// The function of a call reports how far the call has come ([ReportStage]), its clients
// report their requests ([ReportSent]), and the error of a failed request may carry a
// stage ([StageError]). The latest stage counts, which is the safe assumption. Outside of
// an operator reports are ignored.
//
// A call may be repeated if its servers recognise a repetition of all its requests
// ([WithDeduplicated]).
//
// # Concurrency
//
// Predicates are safe for concurrent use if their functions are. They must not block. An
// operator calls its predicates one at a time; operators that share a predicate call it
// concurrently.
//
// # Types
//
// Types are inferred from any typed argument. Without one, as in Not(EmptyResult), write
// the row type: Not(EmptyResult[Row]).
package predicates
