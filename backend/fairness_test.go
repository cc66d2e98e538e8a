package backend_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// parcel is a message of a tenant.
type parcel struct {
	Tenant string
	Put    time.Duration
}

// fairness is a setup with tenants at a service that answers 500 calls a second, in
// simulated time.
type fairness struct {
	flood   bool // a tenant puts a hundred messages for each message of another tenant
	queue   []delivery.QueueOption
	backend []backend.Option
}

// p99 returns how long messages of five tenants take from Put to the sink, without the
// flooding tenant. Each puts eight a second at random times, for half a minute.
func (f fairness) p99(t *testing.T) (p99 time.Duration) {
	const tenants, each, slots = 5, 8, 10
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		engine := memory.Open()
		opts := append([]delivery.QueueOption{delivery.WithLogger(silent)}, f.queue...)
		in := delivery.NewQueue[parcel](engine, "in", opts...)
		ctx, cancel := context.WithCancel(t.Context())
		var putting sync.WaitGroup
		put := func(tenant string, rate float64, random *rand.Rand) {
			putting.Go(func() {
				for time.Since(begun) < 30*time.Second {
					time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
					_ = in.Put(ctx, parcel{tenant, time.Since(begun)}, delivery.Key(tenant)) // fails at the end
				}
			})
		}
		for i := range uint64(tenants) {
			put(strconv.Itoa(int(i)), each, rand.New(rand.NewPCG(28, i)))
		}
		if f.flood {
			put("flood", 100*each, rand.New(rand.NewPCG(28, 100)))
		}
		b := backend.New("payments", append([]backend.Option{backend.Limit(slots), backend.WithLogger(silent)}, f.backend...)...)
		call := asyncop.Blocking(func(_ context.Context, p parcel) (parcel, error) {
			time.Sleep(20 * time.Millisecond)
			return p, nil
		})
		op := asyncop.UnorderedWait(call, time.Minute, slots,
			asyncop.WithBackend(b, asyncop.Tenant(func(p parcel) string { return p.Tenant })),
			asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(silent))
		var took []time.Duration
		time.AfterFunc(31*time.Second, cancel)
		_, err := delivery.Run(ctx, in, op, parcels(func(ms []message.Message[parcel]) {
			for _, m := range ms {
				if m.Value.Tenant != "flood" {
					took = append(took, time.Since(begun)-m.Value.Put)
				}
			}
		}), delivery.WithLogger(silent))
		require.NoError(t, err)
		putting.Wait()
		slices.Sort(took)
		p99 = took[len(took)*99/100]
		t.Logf("flood %v: %d messages of others, median %v, p99 %v", f.flood, len(took), took[len(took)/2], p99)
	})
	return p99
}

type parcels func(ms []message.Message[parcel])

func (f parcels) PutAll(_ context.Context, ms []message.Message[parcel]) error { f(ms); return nil }

// Law B3: if a tenant floods a queue 100 : 1, the p99 of the other tenants is at most 1.5
// times their p99 without the flood, provided that the queue takes by tenant and the
// operator is unordered. With a FIFO queue it is more than 10 times as long.
func TestTenant_Floods(t *testing.T) {
	byTenant := []delivery.QueueOption{delivery.WithFairByKey(5)}
	for name, c := range map[string]struct {
		fairness
		most   float64 // times the p99 alone; 0 means more than ten times
		inFull bool    // only at full length
	}{
		"by tenant":                          {fairness{queue: byTenant}, 1.5, false},
		"by tenant, with a rate for each":    {fairness{queue: byTenant, backend: []backend.Option{backend.TenantRate(50, time.Second)}}, 1.5, true},
		"by tenant, without a limit for one": {fairness{queue: []delivery.QueueOption{delivery.WithFairByKey(0)}}, 1.5, true},
		"first in, first out":                {fairness{}, 0, true},
	} {
		if c.inFull && !suite.Full() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			alone := c.p99(t)
			c.flood = true
			flooded := c.p99(t)
			t.Logf("%.2f times", float64(flooded)/float64(alone))
			if c.most > 0 {
				require.LessOrEqual(t, float64(flooded), c.most*float64(alone))
			} else {
				require.Greater(t, flooded, 10*alone)
			}
		})
	}
}
