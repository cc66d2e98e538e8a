package grpcstage

import (
	"context"

	"google.golang.org/grpc/stats"
)

type handler struct{}

var _ stats.Handler = handler{}

func (handler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (handler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (handler) HandleConn(context.Context, stats.ConnStats)                       {}

func (handler) HandleRPC(ctx context.Context, event stats.RPCStats) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return // of a connection without the interceptors
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := event.(type) {
	case *stats.Begin:
		if !e.IsTransparentRetryAttempt { // else the attempt before was not processed
			c.earlier = c.earlier || c.wrote
		}
		c.wrote, c.answered = false, false
	case *stats.OutHeader:
		c.wrote = c.wrote || c.atHeader
	case *stats.OutPayload:
		c.wrote = true // handed to the connection for the first time
	case *stats.InTrailer:
		c.answered = true
	}
}
