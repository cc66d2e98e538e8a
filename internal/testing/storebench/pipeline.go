package storebench

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

const chunk = 20_000

// pipeline measures source, operator and sink, and alternately the store's bare Take, Put
// and Done. Each message moves from one queue to another.
func pipeline(b *testing.B, s store.Store) {
	b.Helper()
	chunk := chunk
	if testing.Short() {
		chunk = 1000
	}
	var took [2]time.Duration
	rounds := (b.N + chunk - 1) / chunk
	for round := range rounds {
		for kind, run := range []func(b *testing.B, s store.Store, in, out string, n int){bare, weir} {
			in, out := fmt.Sprintf("in %d %d", round, kind), fmt.Sprintf("out %d %d", round, kind)
			fill(b, s, in, chunk)
			start := time.Now()
			run(b, s, in, out, chunk)
			took[kind] += time.Since(start)
			require.Equal(b, chunk, empty(b, s, out))
			require.Zero(b, empty(b, s, in))
		}
	}
	n := float64(rounds * chunk)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(n/took[0].Seconds(), "bare/s")
	b.ReportMetric(n/took[1].Seconds(), "messages/s")
	b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%-of-bare")
}

func fill(b *testing.B, s store.Store, queue string, n int) {
	b.Helper()
	payload := make([]byte, 256)
	ms := make([]store.Message, 0, 1000)
	for i := range n {
		at := message.Origin{Source: "orders", Partition: "0", Position: strconv.Itoa(i)}
		ms = append(ms, store.Message{Meta: message.Meta{ID: at.ID(), Origin: at}, Payload: payload})
		if len(ms) == cap(ms) {
			require.NoError(b, s.Put(b.Context(), queue, ms...))
			ms = ms[:0]
		}
	}
}

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

// bare runs four workers on the store without weir.
func bare(b *testing.B, s store.Store, in, out string, _ int) {
	b.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				taken, err := s.Take(b.Context(), in, Batch, time.Minute)
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

func weir(b *testing.B, s store.Store, in, out string, n int) {
	b.Helper()
	require.NoError(b, Work(b.Context(), s, in, delivery.NewQueue[[]byte](s, out, delivery.WithCodec(Raw)), n))
}
