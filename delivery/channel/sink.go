package channel

import (
	"context"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Sink is a [delivery.Sink] that sends the values of messages to a channel. [NewSink] makes one.
type Sink[T any] struct{ c chan<- T }

var _ delivery.Sink[int] = Sink[int]{}

// NewSink returns a sink that sends to c. A value that was sent counts as safe, so a message may be lost with the process if c
// has a buffer. The sink does not close c. It panics if c is nil.
func NewSink[T any](c chan<- T) Sink[T] {
	guard.RefuseNil("channel: NewSink", "channel", c)
	return Sink[T]{c}
}

// PutAll implements [delivery.Sink]. It acknowledges each message whose value was sent. If ctx ends, the error is the cause of ctx.
func (s Sink[T]) PutAll(ctx context.Context, messages []message.Message[T]) error {
	for i, m := range messages {
		select {
		case s.c <- m.Value:
		case <-ctx.Done():
			for _, sent := range messages[:i] {
				sent.Ack()
			}
			return context.Cause(ctx)
		}
	}
	return nil
}
