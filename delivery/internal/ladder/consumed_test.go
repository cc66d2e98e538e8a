package ladder_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// lateConsumer is an engine whose Consume returns when begin is closed, whatever its
// context.
type lateConsumer struct {
	store.Engine
	begin    chan struct{}
	receiver lateReceiver
}

// lateReceiver is a receiver, and a channel that its Close closes.
type lateReceiver chan struct{}

func (c *lateConsumer) Consume(context.Context, store.Consumption) (store.Receiver, error) {
	<-c.begin
	return c.receiver, nil
}

func (lateReceiver) Receive(context.Context, int) ([]message.Message[[]byte], error) {
	panic("the source is closed")
}

func (lateReceiver) Received(store.Identity) ([]byte, bool) { return nil, false }

func (r lateReceiver) Close(ctx context.Context) error {
	close(r)
	return ctx.Err()
}

// Law D4: a receiver that an engine opens after the source was closed is closed too, or
// it would keep messages from others.
func TestSource_ReceiverAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		late := &lateConsumer{Engine: s, begin: make(chan struct{}), receiver: make(lateReceiver)}
		c.Store, c.Logger, c.Layers, c.Options = late, quiet, []ladder.Layer{}, nil
		source := build(t, c).Source(nil)
		ctx, cancel := context.WithCancel(t.Context())
		received := make(chan error, 1)
		go func() {
			_, err := source.Receive(ctx, 1)
			received <- err
		}()
		synctest.Wait() // it waits for the receiver
		cancel()
		require.ErrorIs(t, <-received, context.Canceled)
		require.ErrorIs(t, source.Close(ctx), context.Canceled)
		close(late.begin)
		synctest.Wait()
		select {
		case <-late.receiver:
		default:
			require.Fail(t, "the receiver is open")
		}
	})
}
