// Package grpconce carries the ids of package exactlyonce through calls of
// google.golang.org/grpc, so that repeated calls take effect once.
//
// # The caller
//
//	tracker := caller.NewTracker(caller.Config{})
//	conn, err := grpc.NewClient(target, append(grpconce.DialOptions("/pay.v1.Payments/Charge"), creds)...)
//
// Calls of the named methods carry the id of their context's element and step in the
// metadata exactly-once. See [DialOptions].
//
// # The server
//
//	results := server.NewResults(server.Config{})
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, grpconce.UnaryServerInterceptor(results, grpconce.ServerConfig{Scope: userOf})))
//
// See [UnaryServerInterceptor].
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package grpconce
