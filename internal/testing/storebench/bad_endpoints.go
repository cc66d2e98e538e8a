package storebench

import (
	"context"
	"fmt"
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
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	goodCustomers = 280
	badCustomers  = 20 // the first 10 are down, 5 hang, 5 ask for a delay
	perCustomer   = 5  // calls of a customer at a time in a worker
)

// BadEndpoints measures two workers that call the endpoints of 300 customers, as the page
// about webhooks has them: p99 of the healthy customers, alone and beside 20 customers
// whose endpoints are down, hang or ask for a delay. It checks that the bad endpoints
// increase the p99 by at most half, the limit of calls of a customer, and that an
// endpoint that is down gets one call per probe (laws B1, B4 and B6). It takes two
// minutes of real time, so it needs WEIR_LONG.
func BadEndpoints(t *testing.T, s store.Store) {
	t.Helper()
	if !suite.Long() {
		t.Skip("takes two minutes of real time: WEIR_LONG=1")
	}
	var alone, beside []time.Duration // p99 of each round
	for round := range 3 {
		good := runEndpoints(t, s, fmt.Sprint("alone", round), 0)
		bad := runEndpoints(t, s, fmt.Sprint("beside", round), badCustomers)
		alone = append(alone, good.p99())
		beside = append(beside, bad.p99())
		t.Logf("p99 of %d events of healthy customers alone: %v, of %d beside bad endpoints: %v", len(good.took), good.p99(), len(bad.took), bad.p99())
		t.Logf("calls of a customer at a time: %d in a worker, %d in two; calls of an endpoint that is down in a worker: %d, %d at a time after it went down, at least %v apart",
			bad.mostInWorker, bad.mostInAll, bad.mostOfDown, bad.mostProbes, bad.leastApart)
		require.LessOrEqual(t, bad.mostInWorker, perCustomer)
		require.Equal(t, 1, bad.mostProbes)
		require.GreaterOrEqual(t, bad.leastApart, 200*time.Millisecond)
	}
	slices.Sort(alone)
	slices.Sort(beside)
	require.LessOrEqual(t, beside[1], alone[1]*3/2, "the median rounds")
}

// endpoints are the endpoints of customers, with what they have seen.
type endpoints struct {
	bad int // the first customers have bad endpoints

	mu           sync.Mutex // guards what follows
	took         []time.Duration
	running      map[string]int // by customer, and by customer and worker
	mostInWorker int
	mostInAll    int
	down         map[string]*downEndpoint // by customer and worker
	mostOfDown   int
	mostProbes   int
	leastApart   time.Duration
}

// downEndpoint is an endpoint that is down, as a worker calls it.
type downEndpoint struct {
	calls, losses int
	probes        int       // that run
	last          time.Time // start of the last probe
}

func (e *endpoints) p99() time.Duration {
	slices.Sort(e.took)
	return e.took[len(e.took)*99/100]
}

// begin notes the start of a call.
func (e *endpoints) begin(customer, inWorker string, isDown bool) (isProbe bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[customer]++
	e.running[inWorker]++
	e.mostInAll = max(e.mostInAll, e.running[customer])
	e.mostInWorker = max(e.mostInWorker, e.running[inWorker])
	if !isDown {
		return false
	}
	d := e.down[inWorker]
	if d == nil {
		d = &downEndpoint{}
		e.down[inWorker] = d
	}
	d.calls++
	e.mostOfDown = max(e.mostOfDown, d.calls)
	if d.losses < perCustomer { // the worker has not taken it down yet
		return false
	}
	now := time.Now()
	if !d.last.IsZero() {
		e.leastApart = min(e.leastApart, now.Sub(d.last))
	}
	d.last = now
	d.probes++
	e.mostProbes = max(e.mostProbes, d.probes)
	return true
}

// end notes the end of a call.
func (e *endpoints) end(customer, inWorker string, isDown, isProbe bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[customer]--
	e.running[inWorker]--
	if isDown {
		e.down[inWorker].losses++
	}
	if isProbe {
		e.down[inWorker].probes--
	}
}

// call calls the endpoint of a customer.
func (e *endpoints) call(ctx context.Context, worker int, p parcel) (parcel, error) {
	var n int
	_, err := fmt.Sscan(p.Tenant, &n)
	if err != nil {
		return p, err
	}
	inWorker := fmt.Sprint(p.Tenant, " in ", worker)
	isDown := n < min(10, e.bad)
	isProbe := e.begin(p.Tenant, inWorker, isDown)
	defer e.end(p.Tenant, inWorker, isDown, isProbe)
	time.Sleep(20 * time.Millisecond)
	switch {
	case isDown:
		return p, &httpretry.StatusError{StatusCode: 503}
	case n < min(15, e.bad):
		<-ctx.Done()
		return p, context.Cause(ctx)
	case n < e.bad:
		return p, &httpretry.StatusError{StatusCode: 429, Delay: 5 * time.Second, HasDelay: true}
	}
	if n >= badCustomers {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.took = append(e.took, time.Since(p.Put))
	}
	return p, nil
}

// runEndpoints puts 300 events a second of all customers for 20 s, and runs two workers.
func runEndpoints(t *testing.T, s store.Store, name string, bad int) *endpoints {
	t.Helper()
	const length, each = 20 * time.Second, 1.0
	e := &endpoints{bad: bad, running: map[string]int{}, down: map[string]*downEndpoint{}, leastApart: time.Hour, mostProbes: 1}
	quiet := slog.New(slog.DiscardHandler)
	newQueue := func() *delivery.Queue[parcel] {
		return delivery.NewQueue[parcel](s, name, delivery.WithFairByKey(perCustomer), delivery.RetryAfter(time.Minute, 10*time.Minute), delivery.WithLogger(quiet))
	}
	ctx, stop := context.WithTimeout(t.Context(), length+time.Second)
	defer stop()
	var working sync.WaitGroup
	for worker := range 2 {
		working.Go(func() {
			queue := newQueue()
			b := backend.New("customers", backend.Limit(100), backend.TenantRate(20, time.Second), backend.TenantBreaker(), backend.WithLogger(quiet))
			op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(func(ctx context.Context, p parcel) (parcel, error) { return e.call(ctx, worker, p) }),
				30*time.Second, 100, strategies.ReasonAware(httpretry.Classifier[parcel](), nil), asyncop.WithAttemptTimeout(10*time.Second),
				asyncop.WithBackend(b), asyncop.WithFailureSink(queue.TakeFailure), asyncop.WithLogger(quiet))
			_, err := delivery.Run(ctx, queue, op, noParcels{}, delivery.WithDrain(time.Second), delivery.WithLogger(quiet))
			if err != nil {
				t.Error(err)
			}
		})
	}
	queue := newQueue()
	next := time.Now()
	for end := next.Add(length); next.Before(end); {
		var ms []message.Message[parcel]
		for now := time.Now(); !next.After(now); next = next.Add(time.Duration(rand.ExpFloat64() / (each * (goodCustomers + badCustomers)) * float64(time.Second))) {
			customer := strconv.Itoa(rand.IntN(goodCustomers + badCustomers))
			ms = append(ms, message.New(parcel{customer, next}, &message.Meta{Key: customer}, nil))
		}
		if len(ms) > 0 {
			require.NoError(t, queue.PutAll(ctx, ms))
		}
		time.Sleep(time.Until(next))
	}
	working.Wait()
	return e
}

// noParcels is a sink that drops results.
type noParcels struct{}

func (noParcels) PutAll(context.Context, []message.Message[parcel]) error { return nil }
