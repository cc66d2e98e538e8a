package delivery_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// customers calls the endpoints of customers, in virtual time.
type customers struct {
	engine *memory.Engine
	queue  *delivery.Queue[job]
	begun  time.Time

	mu     sync.Mutex
	down   map[string]time.Duration   // how long an endpoint is down
	calls  map[string][]time.Duration // starts of calls by customer
	waited map[string]time.Duration   // the longest time from the put to an answer
}

var errEndpointDown = &httpretry.StatusError{StatusCode: 503}

func newCustomers(opts ...delivery.QueueOption) *customers {
	c := &customers{
		engine: memory.Open(), begun: time.Now(),
		down: map[string]time.Duration{}, calls: map[string][]time.Duration{}, waited: map[string]time.Duration{},
	}
	opts = append([]delivery.QueueOption{delivery.RetryAfter(time.Second, 10*time.Second), delivery.WithFairByKey(5), noLog}, opts...)
	c.queue = delivery.NewQueue[job](c.engine, "hooks", opts...)
	return c
}

// put puts n messages of a customer.
func (c *customers) put(t *testing.T, customer string, n int) {
	t.Helper()
	for range n {
		require.NoError(t, c.queue.Put(t.Context(), job(customer), delivery.Key(customer)))
	}
}

// call is the function of the operator.
func (c *customers) call(ctx context.Context, j job) (string, error) {
	at := time.Since(c.begun)
	c.mu.Lock()
	c.calls[string(j)] = append(c.calls[string(j)], at)
	isDown := at < c.down[string(j)]
	c.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	if isDown {
		return "", errEndpointDown
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waited[string(j)] = max(c.waited[string(j)], time.Since(c.begun))
	return "", nil
}

// work runs a worker with 50 slots for a time.
func (c *customers) work(t *testing.T, d time.Duration, b *backend.Backend) delivery.Summary {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(d, stop)
	return c.workWith(ctx, t, asyncop.Blocking(c.call), 10*time.Second, asyncop.WithBackend(b))
}

// workWith runs a worker with 50 slots for elements with a timeout, until ctx ends.
func (c *customers) workWith(ctx context.Context, t *testing.T, f asyncop.AsyncFunction[job, string], timeout time.Duration, opts ...asyncop.Option) delivery.Summary {
	t.Helper()
	policy := strategies.ReasonAware(httpretry.Classifier[string](), nil).Idempotent()
	opts = append(opts, asyncop.WithFailureSink(c.queue.TakeFailure), asyncop.WithLogger(quiet))
	op := asyncop.UnorderedWaitWithRetry(f, timeout, 50, policy, opts...)
	summary, err := delivery.Run(ctx, c.queue, op, sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently)
	if err != nil {
		t.Error(err)
	}
	return summary
}

// visits returns how many messages of a customer are in a queue, by their visits.
func (c *customers) visits(t *testing.T, queue, customer string) map[int]int {
	t.Helper()
	n := map[int]int{}
	for page := (store.Page{Max: 1000}); ; {
		list, err := c.engine.List(t.Context(), queue, store.Filter{Key: customer}, page)
		require.NoError(t, err)
		if len(list) == 0 {
			return n
		}
		for _, e := range list {
			n[e.Meta.Visit]++
		}
		page.After = list[len(list)-1].Position
	}
}

// Laws B1, B2 and B4: while the endpoint of a customer is down, a call tries it from time
// to time, and the messages of the customer stay in the queue, without visits. The others
// are served as if there were no such customer.
func TestRun_KeyThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.down["down"] = time.Hour
		c.put(t, "down", 1000)
		for i := range 40 {
			c.put(t, fmt.Sprint(i), 25)
		}
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		summary := c.work(t, time.Minute, b)
		for i := range 40 {
			require.Len(t, c.calls[fmt.Sprint(i)], 25)
		}
		longest := slices.Max(slices.Collect(maps.Values(c.waited)))
		require.Less(t, longest, time.Second, "1,000 calls of 20 ms, 50 at a time, take 400 ms")
		require.Less(t, len(c.calls["down"]), 60, "with one probe in each ten seconds, and more at the beginning")
		isProbe := func(at time.Duration) bool { return at > 100*time.Millisecond }
		probes := c.calls["down"][slices.IndexFunc(c.calls["down"], isProbe):]
		require.Greater(t, len(probes), 20)
		for i := range probes[1:] {
			require.GreaterOrEqual(t, probes[i+1]-probes[i], 250*time.Millisecond, "%v", probes)
		}
		called := summary.HandedOver
		inQueue := c.visits(t, "hooks", "down")
		require.Equal(t, map[int]int{0: inQueue[0]}, inQueue, "no visits without a call")
		require.GreaterOrEqual(t, inQueue[0], 1000-called)
		require.Zero(t, summary.Floods)
	})
}

// Law B4: when the endpoint answers again, all messages of the customer are delivered.
func TestRun_KeyThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.down["a"] = 30 * time.Second
		c.put(t, "a", 300)
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		c.work(t, 2*time.Minute, b)
		counts, err := c.queue.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, delivery.QueueCounts{}, counts)
		require.Less(t, c.waited["a"], time.Minute)
		require.Zero(t, b.Stats().TenantsDown)
	})
}

// Twenty customers that are down, and whose calls time out, do not keep the others
// waiting.
func TestRun_ManyKeysThatAreDown(t *testing.T) {
	longest := func(down int) (longest time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := newCustomers()
			for i := range down {
				name := fmt.Sprint("down", i)
				c.down[name] = time.Hour
				c.put(t, name, 100)
			}
			for i := range 100 {
				c.put(t, fmt.Sprint(i), 20)
			}
			c.work(t, 20*time.Second, backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet)))
			longest = slices.Max(slices.Collect(maps.Values(c.waited)))
		})
		return longest
	}
	without := longest(0)
	with := longest(20)
	require.Less(t, with, without*3/2, "without: %v", without)
}

// The breaker also works on a queue without WithFairByKey: a message of a key that is
// down is released when it is its turn, without a visit.
func TestRun_KeyThatIsDownWithoutFairByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.queue = delivery.NewQueue[job](c.engine, "plain", delivery.RetryAfter(time.Hour), noLog)
		c.down["down"] = time.Hour
		c.put(t, "down", 200)
		c.put(t, "up", 100)
		summary := c.work(t, 20*time.Second, backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet)))
		require.Len(t, c.calls["up"], 100)
		require.Less(t, len(c.calls["down"]), 100)
		require.Positive(t, summary.Released)
		inQueue := c.visits(t, "plain", "down")
		require.Equal(t, map[int]int{0: 200 - len(c.calls["down"])}, inQueue)
	})
}

// Law D5: keys that are down show nothing about the others, so their lost calls do not
// make the worker stop.
func TestRun_ManyKeysDown_NoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		for i := range 60 {
			name := fmt.Sprint("down", i)
			c.down[name] = time.Hour
			c.put(t, name, 100)
		}
		go func() { // ends within the time of the worker
			for range 10 {
				time.Sleep(2 * time.Second)
				for i := range 100 {
					_ = c.queue.Put(context.Background(), job(fmt.Sprint(i)), delivery.Key(fmt.Sprint(i)))
				}
			}
		}()
		s := c.work(t, 25*time.Second, b)
		require.Zero(t, s.Floods, "%v", s)
		for i := range 100 {
			require.Len(t, c.calls[fmt.Sprint(i)], 10)
		}
	})
}

// While a call of one worker tries the service of a key, another worker at the same
// backend does not take and release the messages of the key again and again.
func TestRun_TwoWorkersDuringProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.put(t, "a", 500)
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		b.HoldTenant("a", "x")
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(12*time.Second, stop)
		time.AfterFunc(2*time.Second, func() { b.ResumeTenant("a") })
		hang := func(ctx context.Context, _ job) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		var wg sync.WaitGroup
		sums := make([]delivery.Summary, 2)
		for i := range sums {
			wg.Go(func() { sums[i] = c.workWith(ctx, t, asyncop.Blocking(hang), 9*time.Second, asyncop.WithBackend(b)) })
		}
		wg.Wait()
		require.Less(t, sums[0].Received+sums[1].Received, 300, "%v", sums)
	})
}

// Law B6: customers whose services ask for a delay do not fill the slots meanwhile.
func TestRun_ThrottledKeys(t *testing.T) {
	longest := func(throttled int) (longest time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := newCustomers()
			for i := range throttled {
				c.put(t, fmt.Sprint("throttled", i), 100)
			}
			for i := range 100 {
				c.put(t, fmt.Sprint(i), 20)
			}
			call := func(ctx context.Context, j job) (string, error) {
				if strings.HasPrefix(string(j), "throttled") {
					return "", &httpretry.StatusError{StatusCode: 429, Delay: time.Minute, HasDelay: true}
				}
				return c.call(ctx, j)
			}
			b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet), backend.LongestPause(time.Minute))
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(30*time.Second, stop)
			c.workWith(ctx, t, asyncop.Blocking(call), 10*time.Second, asyncop.WithBackend(b))
			longest = slices.Max(slices.Collect(maps.Values(c.waited)))
		})
		return longest
	}
	require.Less(t, longest(20), longest(0)*3/2)
}

// A customer is not left out because a tenant of the same name is down, if the tenants
// are not the keys.
func TestRun_TenantsAreNotKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.down["x"] = time.Hour
		c.put(t, "eu", 100) // a customer in the region "us", which is up
		c.put(t, "x", 10)   // a customer in the region "eu", which is down
		region := func(j job) string {
			if j == "x" {
				return "eu"
			}
			return "us"
		}
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, stop)
		c.workWith(ctx, t, asyncop.Blocking(c.call), 10*time.Second, asyncop.WithBackend(b, asyncop.Tenant(region)))
		require.Len(t, c.calls["eu"], 100)
		require.Less(t, c.waited["eu"], 5*time.Second)
	})
}

// A worker reports which keys are down, since when and why, if the tenants are the keys.
func TestRun_ReportsKeysDown(t *testing.T) {
	for name, test := range map[string]struct {
		option func(*backend.Backend) asyncop.Option
		want   []string
	}{
		"the tenants are the keys": {func(b *backend.Backend) asyncop.Option { return asyncop.WithBackend(b) }, []string{"held held spam", "down down"}},
		"they are not": {func(b *backend.Backend) asyncop.Option {
			return asyncop.WithBackend(b, asyncop.Tenant(func(j job) string { return string(j) }))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCustomers()
				c.down["down"] = time.Hour
				c.put(t, "down", 100)
				c.put(t, "up", 100)
				b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
				b.HoldTenant("held", "spam")
				b.HoldTenant("not text \xff", "spam")
				began := time.Now()
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { // ends with ctx
					defer close(ended)
					c.workWith(ctx, t, asyncop.Blocking(c.call), 10*time.Second, test.option(b))
				}()
				time.Sleep(time.Minute)
				j, err := jobs.New(c.engine, jobs.Config{Logger: quiet})
				require.NoError(t, err)
				list, err := j.Workers(t.Context())
				require.NoError(t, err)
				require.Len(t, list, 1)
				var got []string
				for _, k := range list[0].KeysDown {
					state := k.State
					if state == "probing" { // between two probes
						state = "down"
					}
					if k.Key == "down" {
						require.NotEmpty(t, k.Why)
						require.Less(t, k.Since.Sub(began), 10*time.Second, "the start of the outage")
						k.Why = ""
					}
					got = append(got, strings.TrimSpace(fmt.Sprint(k.Key, " ", state, " ", k.Why)))
				}
				require.Equal(t, test.want, got)
				stop()
				<-ended
			})
		})
	}
}

// The report of many keys that are down for long reasons, such as the page of a proxy, is
// smaller than the largest message of a NATS server.
func TestRun_ReportOfKeysDownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		b := backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet))
		for i := range 300 {
			b.HoldTenant(fmt.Sprintf("%0100d", i), strings.Repeat("é", 2500))
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			c.workWith(ctx, t, asyncop.Blocking(c.call), 10*time.Second, asyncop.WithBackend(b))
		}()
		time.Sleep(time.Second)
		reports, err := c.engine.Records(t.Context(), "worker", "", 10)
		require.NoError(t, err)
		require.Len(t, reports, 1)
		require.Less(t, len(reports[0].Value), 200_000)
		require.Equal(t, 256, strings.Count(reports[0].Value, "é…"))
		stop()
		<-ended
	})
}
