package storebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
)

const (
	chunk = 10_000 // messages of one turn
	batch = 100    // of a Take and a Put
)

// raw is a codec that has nothing to do.
var raw = codec.Func(
	func(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil },
	func(src []byte) ([]byte, error) { return src, nil },
)

// pipeline compares source, operator and sink with the store's bare Take, Put and Done, in one run: by turns. Each message goes
// from one queue to another.
func pipeline(b *testing.B, s store.Store) {
	b.Helper()
	var took [2]time.Duration
	turns := (b.N + chunk - 1) / chunk
	for turn := range turns {
		for kind, run := range []func(b *testing.B, s store.Store, in, out string){bare, weir} {
			in, out := fmt.Sprintf("in %d %d", turn, kind), fmt.Sprintf("out %d %d", turn, kind)
			fill(b, s, in)
			start := time.Now()
			run(b, s, in, out)
			took[kind] += time.Since(start)
			require.Equal(b, chunk, empty(b, s, out))
			require.Zero(b, empty(b, s, in))
		}
	}
	n := float64(turns * chunk)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(n/took[0].Seconds(), "bare/s")
	b.ReportMetric(n/took[1].Seconds(), "messages/s")
	b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%-of-bare")
}

// fill puts a chunk of messages, a thousand a call.
func fill(b *testing.B, s store.Store, queue string) {
	b.Helper()
	payload := make([]byte, 256)
	ms := make([]store.Message, 0, 1000)
	for i := range chunk {
		at := delivery.Origin{Source: "orders", Partition: "0", Position: strconv.Itoa(i)}
		ms = append(ms, store.Message{Meta: delivery.Meta{ID: at.ID(), Origin: at}, Payload: payload})
		if len(ms) == cap(ms) {
			require.NoError(b, s.Put(b.Context(), queue, ms...))
			ms = ms[:0]
		}
	}
}

// empty takes all messages of a queue and returns how many those were.
func empty(b *testing.B, s store.Store, queue string) (n int) {
	b.Helper()
	for {
		ms, err := s.Take(b.Context(), queue, 1000, time.Minute)
		require.NoError(b, err)
		if len(ms) == 0 {
			return n
		}
		require.NoError(b, s.Done(b.Context(), leases(ms)...))
		n += len(ms)
	}
}

func leases(ms []store.Leased) []store.Lease {
	leases := make([]store.Lease, len(ms))
	for i := range ms {
		leases[i] = ms[i].Lease
	}
	return leases
}

// bare is what a worker without weir does, four times.
func bare(b *testing.B, s store.Store, in, out string) {
	b.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				taken, err := s.Take(b.Context(), in, batch, time.Minute)
				if err != nil {
					b.Error(err)
					return
				}
				if len(taken) == 0 {
					return
				}
				ms := make([]store.Message, len(taken))
				for i := range taken {
					ms[i] = taken[i].Message
				}
				if err := errors.Join(s.Put(b.Context(), out, ms...), s.Done(b.Context(), leases(taken)...)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// counting ends a run with the last message.
type counting struct {
	delivery.Sink[[]byte]
	left atomic.Int64
	end  context.CancelFunc
}

func (c *counting) Put(ctx context.Context, ms []delivery.Message[[]byte]) error {
	err := c.Sink.Put(ctx, ms)
	if err == nil && c.left.Add(-int64(len(ms))) == 0 {
		c.end()
	}
	return err
}

// weir is source, operator and sink.
func weir(b *testing.B, s store.Store, in, out string) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	sink := &counting{Sink: store.NewSink(s, out, raw), end: cancel}
	sink.left.Store(chunk)
	source := store.NewSource(s, in, "dead", raw)
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v []byte) ([]byte, error) { return v, nil }), time.Minute, 1000)
	results := make(chan delivery.Message[[]byte], batch)
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		for m := range results {
			ms := append(make([]delivery.Message[[]byte], 0, batch), m)
			for more := true; more && len(ms) < batch; {
				select {
				case m, ok := <-results:
					if more = ok; ok {
						ms = append(ms, m)
					}
				default:
					more = false
				}
			}
			if err := sink.Put(b.Context(), ms); err != nil {
				b.Error(err)
			}
			for _, m := range ms {
				m.Ack()
			}
		}
	}()
	for m, err := range op.Messages(func(yield func(delivery.Message[[]byte], error) bool) {
		for {
			ms, err := source.Receive(ctx, batch)
			if err != nil {
				if !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
					b.Error(err)
				}
				return
			}
			for _, m := range ms {
				if !yield(m, nil) {
					return
				}
			}
		}
	}) {
		if err != nil {
			b.Error(err)
			break
		}
		results <- m
	}
	close(results)
	<-filled
	require.NoError(b, source.Close(b.Context()))
}
