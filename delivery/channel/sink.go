package channel

import (
	"context"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// NewSink returns a sink that sends the values of messages to c. PutAll acknowledges each
// message whose value was sent, so a message may be lost with the process if c has a
// buffer. If its context ends, the error is the cause. The sink does not close c. It
// panics if c is nil.
func NewSink[T any](c chan<- T) delivery.Sink[T] {
	guard.RefuseNil("channel: NewSink", "channel", c)
	return sink[T]{c}
}

type sink[T any] struct{ c chan<- T }

// PutAll implements [delivery.Sink].
func (s sink[T]) PutAll(ctx context.Context, messages []message.Message[T]) error {
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
