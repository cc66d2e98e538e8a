// Package grpcstage reports the stage of calls of google.golang.org/grpc, so that unsent
// calls are repeated, even if they must not happen twice:
//
//	conn, err := grpc.NewClient(target, append(grpcstage.DialOptions(), creds)...)
//	client := pb.NewOrdersClient(conn)
//	place := asyncop.Blocking(func(ctx context.Context, o *pb.Order) (*pb.Receipt, error) {
//		return client.Place(ctx, o)
//	})
//	op := asyncop.OrderedWaitWithRetry(place, 5*time.Second, 1000,
//		strategies.ReasonAware(grpcretry.Classifier[*pb.Receipt](status.Code), nil))
//
// UNAVAILABLE alone does not show whether the call was sent, so without these options
// such a call is not repeated.
//
// # Stages
//
// An error carries its stage, as *predicates.StageError; status.Code and errors.As find
// the status in it.
//
//	ClientDispatch     no message was handed to a connection, or the server reported by
//	                   HTTP/2 that it had not processed it, and gRPC then sent no other
//	ResponseReceived   a status came from the server
//	NetworkTime        anything else
//
// A call counts as sent with its first message, without which a server does not execute
// it; a call with a stream of messages counts as sent with its header.
//
// Each call is reported to its context's attempt (predicates.ReportSent), and taken back
// if it was not sent or the server refused it (the rejections of package grpcretry). So a
// function that makes two calls is not repeated if only the second was not sent.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package grpcstage
