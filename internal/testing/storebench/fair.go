package storebench

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

type parcel struct {
	Tenant string
	Put    time.Time
}

// Fair measures tenants at a service that answers 500 calls per second: alone, and beside
// a tenant that puts a hundred messages for each of theirs (law B3). It logs their p99
// and checks that flooding increases it by at most half. It takes a minute of real time,
// so it needs WEIR_LONG.
func Fair(t *testing.T, s store.Store) {
	t.Helper()
	if !suite.Long() {
		t.Skip("takes a minute of real time: WEIR_LONG=1")
	}
	alone := fair(t, delivery.NewQueue[parcel](s, "alone", delivery.WithFairByKey(5)), false)
	flooded := fair(t, delivery.NewQueue[parcel](s, "flooded", delivery.WithFairByKey(5)), true)
	fifo := fair(t, delivery.NewQueue[parcel](s, "fifo"), true)
	t.Logf("p99: alone %v, beside one that floods %v, from a queue without WithFairByKey %v", alone, flooded, fifo)
	require.LessOrEqual(t, flooded, alone*3/2)
	require.Greater(t, fifo, 5*flooded)
}

func fair(t *testing.T, q *delivery.Queue[parcel], flood bool) (p99 time.Duration) {
	t.Helper()
	const tenants, each, slots, length = 5, 8, 10, 15 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), length+time.Second)
	defer cancel()
	var putting sync.WaitGroup
	put := func(tenant string, rate float64) {
		putting.Go(func() {
			next := time.Now()
			for end := next.Add(length); next.Before(end); {
				var ms []message.Message[parcel]
				for now := time.Now(); !next.After(now); next = next.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
					ms = append(ms, message.New(parcel{tenant, next}, &message.Meta{Key: tenant}, nil))
				}
				if len(ms) > 0 {
					_ = q.PutAll(ctx, ms) // fails at the end
				}
				time.Sleep(time.Until(next))
			}
		})
	}
	for i := range tenants {
		put(strconv.Itoa(i), each)
	}
	if flood {
		put("flood", 100*each)
	}
	quiet := slog.New(slog.DiscardHandler)
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, p parcel) (parcel, error) {
		time.Sleep(20 * time.Millisecond)
		return p, nil
	}), time.Minute, slots, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet),
		asyncop.WithBackend(backend.New("payments", backend.Limit(slots), backend.WithLogger(quiet)), asyncop.Tenant(func(p parcel) string { return p.Tenant })))
	sink := parcels{}
	_, err := delivery.Run(ctx, q, op, &sink, delivery.WithLogger(quiet))
	require.NoError(t, err)
	putting.Wait()
	slices.Sort(sink.took)
	return sink.took[len(sink.took)*99/100]
}

// parcels is a sink that records the latency of tenants that do not flood.
type parcels struct{ took []time.Duration }

func (s *parcels) PutAll(_ context.Context, ms []message.Message[parcel]) error {
	for _, m := range ms {
		if m.Value.Tenant != "flood" {
			s.took = append(s.took, time.Since(m.Value.Put))
		}
	}
	return nil
}
