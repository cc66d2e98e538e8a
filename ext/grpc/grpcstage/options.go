package grpcstage

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
)

// DialOptions returns the options for [grpc.NewClient]: a stats handler and interceptors,
// appended to the interceptors of other options.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStatsHandler(handler{}),
		grpc.WithChainUnaryInterceptor(unary),
		grpc.WithChainStreamInterceptor(stream),
	}
}

func unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	c := &call{sent: predicates.ReportSent(ctx)} // before the call is sent: later, the attempt may have ended
	return c.end(invoke(context.WithValue(ctx, callKey{}, c), method, req, reply, cc, opts...))
}

func stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	c := &call{sent: predicates.ReportSent(ctx), atHeader: desc.ClientStreams}
	s, err := open(context.WithValue(ctx, callKey{}, c), desc, cc, method, opts...)
	if err != nil {
		return nil, c.end(err)
	}
	return &clientStream{s, c}, nil
}

// clientStream is a stream whose errors carry the call's stage.
type clientStream struct {
	grpc.ClientStream
	call *call
}

func (s *clientStream) SendMsg(m any) error { return s.call.end(s.ClientStream.SendMsg(m)) }
func (s *clientStream) RecvMsg(m any) error { return s.call.end(s.ClientStream.RecvMsg(m)) }

// call is how far a call has come, over all attempts by gRPC.
type call struct {
	sent     predicates.SentRequest
	atHeader bool // its messages are a stream: the header may start it

	mu       sync.Mutex
	wrote    bool // by the running attempt
	earlier  bool // by an earlier attempt, which the server may have processed
	answered bool // the running attempt got a trailer
	ended    bool
}

type callKey struct{}

// end returns err with its stage. Nil and the end of a stream stay as they are.
func (c *call) end(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stage := predicates.NetworkTime
	switch {
	case !c.wrote && !c.earlier:
		stage = predicates.ClientDispatch
	case c.answered:
		stage = predicates.ResponseReceived
	}
	err = &predicates.StageError{Stage: stage, Err: err}
	if !c.ended && (stage == predicates.ClientDispatch || c.answered && !c.earlier && rejected(err)) {
		c.sent.Refused()
	}
	c.ended = true
	return err
}

var classify = grpcretry.Classifier[struct{}](status.Code)

// rejected reports whether the server refused the call for good, without effect.
func rejected(err error) bool {
	reason, _ := classify(&predicates.Attempt[struct{}]{Err: err})
	return reason.IsRejection()
}
