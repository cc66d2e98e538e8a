package storebench

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Batch is the number of messages per Take and Put in the pipelines.
const Batch = 500

// Raw is a codec that copies bytes.
var Raw = codec.Func(
	func(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil },
	func(src []byte) ([]byte, error) { return src, nil },
)

// Work runs a worker with an identity function until n messages of a queue are in the
// sink.
func Work(ctx context.Context, s store.Store, queue string, sink delivery.Sink[[]byte], n int) error {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	source := delivery.NewQueue[[]byte](s, queue, delivery.WithCodec(Raw))
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v []byte) ([]byte, error) { return v, nil }), time.Minute, 1000,
		asyncop.WithDropOnFailure())
	_, err := delivery.Run(ctx, source, op, &counted{sink, n, enough},
		delivery.WithBatch(Batch), delivery.WithLogger(slog.New(slog.DiscardHandler)))
	return err
}

type counted struct {
	delivery.Sink[[]byte]
	left   int
	enough func()
}

func (c *counted) PutAll(ctx context.Context, ms []message.Message[[]byte]) error {
	err := c.Sink.PutAll(ctx, ms)
	c.left -= len(ms)
	if c.left <= 0 {
		c.enough()
	}
	return err
}
