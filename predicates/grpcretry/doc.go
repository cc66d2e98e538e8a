// Package grpcretry names the reasons of failed gRPC calls, without importing gRPC: the function that knows the code of an
// error is an argument, and google's status.Code and Connect's connect.CodeOf are such functions.
//
//	strategies.ReasonAware(grpcretry.Classifier[Row](status.Code), strategies.BestEffort[Row]())
//
// (An interface with the method GRPCStatus cannot be written down without the type
// that it returns, and reflection is slower than a function.)
//
// # Vocabulary
//
//	code                    reason              non-idempotent calls may be retried
//	4  DEADLINE_EXCEEDED    DeadlineExceeded    no: it may have been executed
//	8  RESOURCE_EXHAUSTED   ResourceExhausted   no: the code does not promise it
//	14 UNAVAILABLE          Unavailable         no: it may have been lost in flight
//	3  INVALID_ARGUMENT     InvalidArgument     a rejection: no call is retried, and
//	5  NOT_FOUND            NotFound            its failure is not in doubt
//	6  ALREADY_EXISTS       AlreadyExists
//	7  PERMISSION_DENIED    PermissionDenied
//	9  FAILED_PRECONDITION  FailedPrecondition
//	16 UNAUTHENTICATED      Unauthenticated
//	others                  none, the outcome is accepted
//
// RESOURCE_EXHAUSTED for a message that is too large is accepted, too: it would be as large the next time. gRPC lacks a code for that, so it is
// recognised by its text.
//
// ABORTED does not get a reason, since the transaction around the call has to be repeated, not the call. Neither does UNKNOWN, the code of any
// error that did not come from gRPC: put netretry.Classifier after this classifier for those errors. OUT_OF_RANGE and UNIMPLEMENTED may come
// from a client that cannot read the answer.
//
// # Calls that were not sent
//
// UNAVAILABLE and DEADLINE_EXCEEDED of a call that was not sent are netretry.NotSent, and retried even if it must not happen twice. gRPC's
// errors do not show that. For google.golang.org/grpc use the module ext/grpc:
//
//	conn, err := grpc.NewClient(target, append(grpcstage.DialOptions(), creds)...)
//
// For other clients a function that knows it returns a predicates.StageError of ClientDispatch; an adapter also reports its requests
// (predicates.ReportSent).
//
// Of several calls whose errors a function joins, the error that allows least decides: see predicates.Classifier.
//
// For a service whose codes mean more, put a table of your own before this table:
//
//	predicates.Classifiers(
//		predicates.ByCode(grpcretry.Code[Row](status.Code), map[codes.Code]predicates.Reason{…}),
//		grpcretry.Classifier[Row](status.Code))
//
// # Pushback
//
// A server demands a delay, or no further call, by the trailer grpc-retry-pushback-ms. See [WithPushback].
//
// # Concurrency
//
// Everything here is safe for concurrent use if the function that finds the code is.
//
// # Sources
//
// gRPC's status codes and proposal A6, Client Retries.
package grpcretry
