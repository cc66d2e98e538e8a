package channel

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/redeliver"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// NewSource returns a source of the values of c. A message that is nacked waits in
// memory, and is redelivered before the values in c. The source ends when c is closed and
// all messages are acknowledged or rejected. Rejected messages are logged as errors.
// Values taken from the channel cannot be released: the error of Close reports how many
// messages are not done.
//
// meta returns the metadata of a value, such as its id; it may be nil, and may return
// nil. Receive adds 1 to its Visit, so the first visit is 1, as with any other source. It
// panics if c is nil.
func NewSource[T any](c <-chan T, meta func(v T) *message.Meta) delivery.Source[T] {
	guard.RefuseNil("channel: NewSource", "channel", c)
	return newSource(c, meta, clock.New())
}

func newSource[T any](c <-chan T, meta func(v T) *message.Meta, timer clock.Clock) *source[T] {
	if meta == nil {
		meta = func(T) *message.Meta { return nil }
	}
	rejected := func(v T, settlement message.Settlement) {
		if settlement.Kind == message.Rejected {
			id := ""
			if m := meta(v); m != nil {
				id = m.ID
			}
			guard.Logger(nil).Error("channel: a message was rejected", slog.String("id", id), slog.Any("error", settlement.Err))
		}
	}
	return &source[T]{redeliver.New(c, timer, redeliver.Hooks[T]{Meta: meta, Settled: rejected})}
}

type source[T any] struct{ s *redeliver.Source[T] }

// Receive implements [delivery.Source].
func (s *source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	return s.s.Receive(ctx, n)
}

// Close implements [delivery.Source].
func (s *source[T]) Close(context.Context) error {
	if n := s.s.Close(); n > 0 {
		return fmt.Errorf("channel: the source was closed with messages that are not done, and are lost: %d", n)
	}
	return nil
}
