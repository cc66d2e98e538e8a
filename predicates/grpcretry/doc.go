// Package grpcretry classifies failed gRPC calls, without importing gRPC: it takes a
// function that returns the code of an error, such as google's status.Code or Connect's
// connect.CodeOf.
//
//	strategies.ReasonAware(grpcretry.Classifier[Row](status.Code), strategies.BestEffort[Row]())
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
//	others                  no reason: the outcome is accepted
//
// RESOURCE_EXHAUSTED for a message that is too large, recognised by its text, is
// accepted, too.
//
// ABORTED does not get a reason, since the transaction around the call has to be
// repeated. Neither does UNKNOWN, the code of errors that did not come from gRPC: put
// netretry.Classifier after this classifier for them. OUT_OF_RANGE and UNIMPLEMENTED may
// come from a client that cannot read the answer.
//
// # Calls that were not sent
//
// UNAVAILABLE and DEADLINE_EXCEEDED of an unsent call are netretry.NotSent, and retried
// even if the call must not happen twice. gRPC's errors do not show that. For
// google.golang.org/grpc use the module ext/grpc:
//
//	conn, err := grpc.NewClient(target, append(grpcstage.DialOptions(), creds)...)
//
// For other clients, return a predicates.StageError of ClientDispatch for an unsent call;
// an adapter also reports its requests (predicates.ReportSent).
//
// Put a table of your own first for a service with more specific codes:
//
//	predicates.Classifiers(
//		predicates.ByCode(grpcretry.Code[Row](status.Code), map[codes.Code]predicates.Reason{…}),
//		grpcretry.Classifier[Row](status.Code))
//
// # Pushback
//
// A server demands a delay, or no further call, by the trailer grpc-retry-pushback-ms.
// See [WithPushback].
//
// # Concurrency
//
// The classifier is safe for concurrent use if the function that returns the code is.
//
// # Sources
//
// gRPC's status codes and proposal A6, Client Retries.
package grpcretry
