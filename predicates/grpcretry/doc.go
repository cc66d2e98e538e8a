// Package grpcretry names the reasons of failed gRPC calls, without importing gRPC:
// the function that knows the code of an error is an argument, and google's
// status.Code and Connect's connect.CodeOf are such functions.
//
//	strategies.ReasonAware(grpcretry.Classifier[Row](status.Code), strategies.BestEffort[Row]())
//
// (An interface with the method GRPCStatus cannot be written down without the type
// that it returns, and reflection is slower than a function.)
//
// # Vocabulary
//
//	code                  reason              non-idempotent calls may be retried
//	4  DEADLINE_EXCEEDED  DeadlineExceeded    no: it may have been executed
//	8  RESOURCE_EXHAUSTED ResourceExhausted   no: the code does not promise it
//	14 UNAVAILABLE        Unavailable         no: it may have been lost in flight
//	others                none, the outcome is accepted
//
// gRPC itself repeats, transparently, what has provably not been sent; what comes
// out is unproven. A function that knows better reports ClientDispatch; the first
// and the last are then netretry.NotSent, which allows it, and the second none. ABORTED has no reason:
// what is to be repeated is not the call, but the transaction around it. Nor has
// UNKNOWN, which any error is that did not come from gRPC: put netretry.Classifier
// after this one for those.
//
// Of several calls whose errors a function joins, the one that allows least decides:
// see predicates.EachError.
//
// A service that gives more meaning to its codes gets a table of its own, before
// this one:
//
//	predicates.Classifiers(
//		predicates.ByCode(grpcretry.Code[Row](status.Code), map[codes.Code]predicates.Reason{…}),
//		grpcretry.Classifier[Row](status.Code))
//
// # Pushback
//
// A server demands a delay, or not to be called again, by the trailer
// grpc-retry-pushback-ms. See [WithPushback].
//
// # Concurrency
//
// Everything here is safe for concurrent use, as far as the function that knows
// the code is.
//
// # Sources
//
// gRPC's status codes and proposal A6, Client Retries.
package grpcretry
