// Package grpcstage reports how far calls of google.golang.org/grpc have come, so that
// calls that were never sent are repeated, even if they must not happen twice:
//
//	conn, err := grpc.NewClient(target, append(grpcstage.DialOptions(), creds)...)
//	client := pb.NewOrdersClient(conn)
//	place := asyncop.Blocking(func(ctx context.Context, o *pb.Order) (*pb.Receipt, error) {
//		return client.Place(ctx, o)
//	})
//	op := asyncop.OrderedWaitWithRetry(place, 5*time.Second, 1000,
//		strategies.ReasonAware(grpcretry.Classifier[*pb.Receipt](status.Code), nil))
//
// Without it UNAVAILABLE does not show whether the call was sent, and such a call is not
// repeated.
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
// A call counts as sent with its first message, since a server does not execute a call
// without it; a call whose messages are a stream counts as sent with its header.
//
// Each call is reported to the attempt that its context belongs to
// (predicates.ReportSent), and taken back if it was not sent or the server refused it
// (the rejections of package grpcretry). So a function that makes two calls is not
// repeated because the second was not sent, if the first was.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package grpcstage
