package backend_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// upTo returns the numbers below n.
func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// timeOf returns how long an operator takes for n elements, at a rate of 100 a second.
func timeOf(t *testing.T, n int, fn asyncop.AsyncFunction[int, int], opts ...asyncop.Option) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("service", backend.Rate(100, time.Second), backend.WithLogger(silent))
		op := asyncop.UnorderedWait(fn, time.Hour, 1000, asyncop.WithBackend(b, opts...), asyncop.WithLogger(silent))
		begun := time.Now()
		for _, err := range op.Results(upTo(n)) {
			require.NoError(t, err)
		}
		took = time.Since(begun)
	})
	return took
}

// The reported cost replaces the estimate at the rate, in both directions.
func TestReportCost(t *testing.T) {
	for _, c := range []struct{ estimate, cost, seconds float64 }{{10, 1, 2}, {1, 10, 20}, {10, 0, 0}} {
		t.Run(fmt.Sprintf("%v instead of %v", c.cost, c.estimate), func(t *testing.T) {
			took := timeOf(t, 200, asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				asyncop.ReportCost(ctx, c.cost/2)
				asyncop.ReportCost(ctx, c.cost/2)
				return in, nil
			}), asyncop.Cost(func(int) float64 { return c.estimate }))
			require.InDelta(t, c.seconds, took.Seconds(), 0.2)
		})
	}
}

// The cost of a batch is divided among its members: 20 batches of 10 calls cost 5 each.
func TestReportCost_Batch(t *testing.T) {
	took := timeOf(t, 200, asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
		asyncop.ReportCost(ctx, float64(len(ins))/2)
		results := make([]asyncop.Result[int], len(ins))
		for i, in := range ins {
			results[i].Value = in
		}
		return results, nil
	}, 10, time.Millisecond), asyncop.Cost(func(int) float64 { return 10 }))
	require.InDelta(t, 1, took.Seconds(), 0.3)
}

func TestReportCost_OutsideOfACall(t *testing.T) {
	asyncop.ReportCost(t.Context(), 1)
	for _, cost := range []float64{-1, math.NaN(), math.Inf(1)} {
		require.Panics(t, func() { asyncop.ReportCost(t.Context(), cost) })
	}
}

// The settled cost of a call that is over the burst, and the wait of the next call after
// it.
func TestCost_Settled(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, c := range map[string]struct {
		evidence gate.Evidence
		settled  float64
		wait     time.Duration // at a rate of 100 a second
	}{
		"an answer":              {gate.Evidence{}, 500, 4960 * time.Millisecond},
		"a failure":              {gate.Evidence{Err: errFailed}, 500, 4960 * time.Millisecond},
		"throttled for 3 s":      {gate.Evidence{Err: errThrottledIn3}, 0, 3 * time.Second},
		"503":                    {gate.Evidence{Err: errBusy}, 500, 4960 * time.Millisecond},
		"a connection refused":   {gate.Evidence{Err: refused}, 0, 0},
		"nothing sent":           {gate.Evidence{Ignored: true}, 0, 0},
		"a report":               {gate.Evidence{Reported: 100, IsReported: true}, 100, 960 * time.Millisecond},
		"a report of more":       {gate.Evidence{Reported: 600, IsReported: true}, 600, 5960 * time.Millisecond},
		"a report, and an error": {gate.Evidence{Err: errFailed, Reported: 100, IsReported: true}, 100, 960 * time.Millisecond},
		"of another call":        {gate.Evidence{Borrowed: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := newBench(t, backend.Rate(100, time.Second)).attach()
			started, _ := o.ask(gate.Request{Cost: 500})
			require.NotNil(t, started)
			e := c.evidence
			e.Begun, e.Cost = o.clock.Now(), 500
			o.seat.Release(0)
			o.seat.AttemptEnded(o.clock.Now(), &e)
			require.InDelta(t, c.settled, e.Cost, 1e-9)
			if c.wait == 0 {
				o.start()
				return
			}
			require.Equal(t, c.wait, o.wait())
		})
	}
}

// Law B6: an attempt whose call was made for another element is throttled like this call.
func TestSeat_ThrottledCallOfAnotherElement(t *testing.T) {
	o := newBench(t).attach()
	e := gate.Evidence{Err: errThrottledIn3, Borrowed: true, Begun: o.clock.Now()}
	require.Equal(t, gate.Throttled, o.seat.AttemptEnded(o.clock.Now(), &e))
	o.start() // the element that made the call reports the pause
}

// Refunds of calls that were throttled do not fill the bucket: there is no burst after
// the pause.
func TestCost_ThrottledCallsFillNoBucket(t *testing.T) {
	o := newBench(t, backend.Rate(100, time.Second)).attach()
	var running []*call
	for range 5 {
		running = append(running, o.start())
	}
	for _, c := range running {
		e := gate.Evidence{Err: errThrottledIn3, Begun: c.begun, Cost: 1}
		o.seat.Release(0)
		o.seat.AttemptEnded(o.clock.Now(), &e)
	}
	o.clock.Add(3 * time.Second)
	require.Equal(t, 10*time.Millisecond, o.wait())
}

type cache struct {
	entries [10]atomic.Pointer[lookup.Entry[int]]
}

func (c *cache) Get(k int) (lookup.Entry[int], bool) {
	if e := c.entries[k].Load(); e != nil {
		return *e, true
	}
	return lookup.Entry[int]{}, false
}
func (c *cache) Put(k int, e lookup.Entry[int]) { c.entries[k].Store(&e) }
func (c *cache) Delete(k int)                   { c.entries[k].Store(nil) }

// Elements that a cache answers, or that join a running call, do not use the rate.
func TestRate_LookupsThatMakeNoCall(t *testing.T) {
	for name, c := range map[string]struct {
		cache   lookup.Cache[int, int]
		latency time.Duration
	}{
		"cache":        {new(cache), 0},
		"shared calls": {nil, time.Second},
		"both":         {new(cache), 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			fn := lookup.Join(lookup.New(asyncop.Blocking(func(_ context.Context, k int) (int, error) {
				calls.Add(1)
				time.Sleep(c.latency)
				return k, nil
			}), c.cache), func(i int) int { return i % 10 }, func(_, v int) int { return v })
			took := timeOf(t, 500, fn)
			require.EqualValues(t, 10, calls.Load())
			require.Less(t, took, c.latency+200*time.Millisecond)
		})
	}
}

// spendWith runs n calls of 0.1 s that cost 10 each, 8 at a time, and returns the costs
// and the error of the operator.
func spendWith(t *testing.T, n int, budget float64, fn asyncop.AsyncFunction[int, int], unordered bool) (results int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("service", backend.WithLogger(silent))
		construct := asyncop.OrderedWait[int, int]
		if unordered {
			construct = asyncop.UnorderedWait[int, int]
		}
		op := construct(fn, time.Hour, 20, asyncop.WithBackend(b, asyncop.Cost(func(int) float64 { return 5 }), asyncop.Budget(budget)),
			asyncop.WithMaxConcurrentCalls(8), asyncop.WithLogger(silent))
		for _, failure := range op.Results(upTo(n)) {
			if failure != nil {
				err = failure
				return
			}
			results++
		}
	})
	return results, err
}

// When the settled cost reaches the budget, running calls complete, their results leave,
// and the run ends.
func TestBudget(t *testing.T) {
	for name, unordered := range map[string]bool{"ordered": false, "unordered": true} {
		t.Run(name, func(t *testing.T) {
			var started atomic.Int64
			fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				started.Add(1)
				time.Sleep(100 * time.Millisecond)
				asyncop.ReportCost(ctx, 10)
				return in, nil
			})
			results, err := spendWith(t, 100, 200, fn, unordered)
			require.ErrorIs(t, err, asyncop.ErrBudgetSpent)
			require.ErrorContains(t, err, "of 200: continue with a larger Budget")
			require.EqualValues(t, started.Load(), results, "running calls complete, and their results leave")
			require.GreaterOrEqual(t, results, 20)
			require.LessOrEqual(t, results, 27, "never exceeded by more than the calls in flight")

			results, err = spendWith(t, 20, 200, fn, unordered)
			require.NoError(t, err, "the last call reaches the budget")
			require.Equal(t, 20, results)
		})
	}
}

// A call that is repeated costs each time, and an element that waits for a retry does not
// keep the run from ending.
func TestBudget_Retries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("service", backend.WithLogger(silent))
		calls := 0
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(_ context.Context, _ int, done asyncop.ResultFuture[int]) error {
			calls++
			return errFailed
		}), time.Hour, 1, strategies.FixedDelay[int](1000, time.Second).RetryIfException(predicates.HasException),
			asyncop.WithBackend(b, asyncop.Budget(5)), asyncop.WithLogger(silent))
		var err error
		for _, err = range op.Results(upTo(1)) {
			require.Error(t, err)
		}
		require.ErrorIs(t, err, asyncop.ErrBudgetSpent)
		require.Equal(t, 5, calls)
	})
}

func TestBudget_Arguments(t *testing.T) {
	for _, total := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		require.Panics(t, func() { asyncop.Budget(total) })
	}
}
