package storebench

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
)

// Batch is how many messages one Take and one Put have in the pipelines that are measured.
const Batch = 500

// Raw is a codec that has nothing to do.
var Raw = codec.Func(
	func(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil },
	func(src []byte) ([]byte, error) { return src, nil },
)

// Work takes n messages from a queue through an operator whose function does nothing, and puts them into a sink, or only
// acknowledges them if sink is nil.
func Work(ctx context.Context, s store.Store, queue string, sink delivery.Sink[[]byte], n int) error {
	source := store.NewSource(s, queue, "dead", Raw)
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v []byte) ([]byte, error) { return v, nil }), time.Minute, 1000)
	receiving, enough := context.WithCancel(ctx)
	defer enough()
	var receiveErr error
	input := func(yield func(delivery.Message[[]byte], error) bool) {
		for {
			ms, err := source.Receive(receiving, Batch)
			if err != nil {
				if receiving.Err() == nil && !errors.Is(err, io.EOF) {
					receiveErr = err
				}
				return
			}
			for _, m := range ms {
				if !yield(m, nil) {
					return
				}
			}
		}
	}
	results := make(chan delivery.Message[[]byte], Batch)
	filled := make(chan error, 1)
	go func() { filled <- fillSink(ctx, sink, results, n, enough) }()
	var err error
	for m, failed := range op.Messages(input) {
		if failed != nil {
			err = failed
			break
		}
		results <- m
	}
	close(results)
	return errors.Join(<-filled, err, receiveErr, source.Close(ctx))
}

// fillSink puts what is at hand into the sink, and acknowledges it. It calls enough after n messages.
func fillSink(ctx context.Context, sink delivery.Sink[[]byte], results <-chan delivery.Message[[]byte], n int, enough func()) (err error) {
	for m := range results {
		ms := append(make([]delivery.Message[[]byte], 0, Batch), m)
		for more := true; more && len(ms) < Batch; {
			select {
			case m, ok := <-results:
				if more = ok; ok {
					ms = append(ms, m)
				}
			default:
				more = false
			}
		}
		if sink != nil {
			err = errors.Join(err, sink.Put(ctx, ms))
		}
		for _, m := range ms {
			m.Ack()
		}
		if n -= len(ms); n <= 0 || err != nil {
			enough()
		}
	}
	return err
}
