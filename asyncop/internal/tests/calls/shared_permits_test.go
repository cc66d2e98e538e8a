package calls_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// gauge counts running calls.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

// forEachKind runs body for each kind of function. Its calls take some time and count
// themselves.
func forEachKind(t *testing.T, body func(t *testing.T, make func(g *gauge, takes time.Duration) asyncop.AsyncFunction[int, int])) {
	t.Helper()
	blocking := func(g *gauge, takes time.Duration) asyncop.AsyncFunction[int, int] {
		return asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
			g.enter()
			defer g.leave()
			select {
			case <-time.After(takes):
				return in, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
	}
	t.Run("Blocking", func(t *testing.T) { body(t, blocking) })
	t.Run("wrapped", func(t *testing.T) {
		body(t, func(g *gauge, takes time.Duration) asyncop.AsyncFunction[int, int] {
			fn := blocking(g, takes)
			return asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
				return fn.AsyncInvoke(ctx, in, result)
			})
		})
	})
	t.Run("callbacks", func(t *testing.T) {
		body(t, func(g *gauge, takes time.Duration) asyncop.AsyncFunction[int, int] {
			return asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
				g.enter()
				time.AfterFunc(takes, func() {
					g.leave()
					result.Complete(in)
				})
				return nil
			})
		})
	})
}

// consume runs an operator over n elements and returns the number of results.
func consume(t *testing.T, op *asyncop.AsyncWaitOperator[int, int], n int) (results int) {
	t.Helper()
	for _, err := range op.Results(slices.Values(make([]int, n))) {
		if err != nil {
			t.Error(err)
			break
		}
		results++
	}
	return results
}

// Operators that share permits together run no more calls than there are permits, use all
// of them, and each gets its share.
func TestPermitsBoundOperatorsTogether(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(*gauge, time.Duration) asyncop.AsyncFunction[int, int]) {
		for _, limit := range []int{1, 3, 10} {
			t.Run(fmt.Sprint(limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					permits := optest.Limited(limit)
					var all gauge
					var wg sync.WaitGroup
					start := time.Now()
					const operators, elements = 3, 20
					var ends [operators]time.Duration
					for i := range operators {
						op := asyncop.OrderedWait(kind(&all, time.Second), time.Hour, 10, asyncop.WithBackend(permits))
						wg.Go(func() {
							assert.Equal(t, elements, consume(t, op, elements))
							ends[i] = time.Since(start)
						})
					}
					wg.Wait()
					require.EqualValues(t, limit, all.most.Load())
					whole := time.Duration((operators*elements+limit-1)/limit) * time.Second
					require.Equal(t, whole, time.Since(start), "permits lie idle")
					if limit == 1 {
						require.GreaterOrEqual(t, slices.Min(ends[:]), 55*time.Second, "the operators are not served alternately")
					}
					for _, end := range ends {
						require.GreaterOrEqual(t, end, whole/2, "one has gone before the others")
					}
					synctest.Wait() // the last call may still be about to return
					require.Zero(t, permits.Stats().InUse)
				})
			})
		}
	})
}

// The limit changes while calls run. 0 stops them.
func TestSetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := optest.Limited(0)
		var all gauge
		op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
			all.enter()
			defer all.leave()
			time.Sleep(10 * time.Second)
			return 0, nil
		}), time.Hour, 100, asyncop.WithBackend(permits))
		done := make(chan int)
		go func() { done <- consume(t, op, 30) }()
		for _, step := range []struct {
			limit   int
			running int64 // after a second
			later   int64 // ten seconds later
		}{{0, 0, 0}, {5, 5, 5}, {7, 7, 7}, {2, 7, 2}, {0, 2, 0}, {100, 9, 0}} {
			permits.SetLimit(step.limit)
			time.Sleep(time.Second)
			require.Equal(t, step.limit, permits.Stats().Limit)
			require.Equal(t, step.running, all.now.Load(), "limit %d", step.limit)
			require.EqualValues(t, step.running, permits.Stats().InUse)
			time.Sleep(10 * time.Second)
			require.Equal(t, step.later, all.now.Load(), "limit %d", step.limit)
		}
		require.Equal(t, 30, <-done)
	})
}

// A permit is returned where its call ends, even if a predicate blocks the loop of its
// operator, or the body of the loop over its results sleeps.
func TestPermitOfAnOperatorThatIsHeldUp(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(*gauge, time.Duration) asyncop.AsyncFunction[int, int]) {
		synctest.Test(t, func(t *testing.T) {
			permits := optest.Limited(2)
			var all gauge
			blocked := make(chan struct{})
			held := asyncop.OrderedWaitWithRetry(kind(&all, time.Second), time.Hour, 10,
				strategies.FixedDelay[int](1, 0).RetryIfResult(func([]int) bool {
					time.Sleep(time.Minute)
					return false
				}), asyncop.WithBackend(permits), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			asleep := asyncop.OrderedWait(kind(&all, time.Second), time.Hour, 1, asyncop.WithBackend(permits), asyncop.WithBuffer(1))
			var wg sync.WaitGroup
			wg.Go(func() { assert.Equal(t, 2, consume(t, held, 2)) })
			wg.Go(func() {
				for range asleep.Results(slices.Values(make([]int, 3))) {
					time.Sleep(time.Minute)
				}
			})
			go func() {
				time.Sleep(2500 * time.Millisecond)
				close(blocked)
			}()
			<-blocked
			start := time.Now()
			free := asyncop.OrderedWait(kind(&all, time.Second), time.Hour, 10, asyncop.WithBackend(permits))
			require.Equal(t, 10, consume(t, free, 10))
			require.LessOrEqual(t, time.Since(start), 11*time.Second)
			wg.Wait()
			require.LessOrEqual(t, all.most.Load(), int64(2))
			synctest.Wait()
			require.Zero(t, permits.Stats().InUse)
		})
	})
}

// Nested operators that share one permit: the inner operator runs on the permit of the
// enclosing call.
func TestNestedOperatorsWithTheSamePermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := optest.Limited(1)
		var inner gauge
		fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
			leaf := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
				inner.enter()
				defer inner.leave()
				time.Sleep(time.Second)
				return 1, nil
			}), time.Minute, 10, asyncop.WithContext(ctx), asyncop.WithBackend(permits))
			between := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
				return consume(t, leaf, 5), ctx.Err()
			}), time.Minute, 10, asyncop.WithContext(ctx)) // without permits
			return consume(t, between, 1), nil
		})
		op := asyncop.OrderedWait(fn, time.Minute, 10, asyncop.WithBackend(permits))
		start := time.Now()
		require.Equal(t, 3, consume(t, op, 3))
		require.Equal(t, 15*time.Second, time.Since(start))
		require.EqualValues(t, 1, inner.most.Load())
		synctest.Wait()
		require.Zero(t, permits.Stats().InUse)
	})
}

// The timeout of an element that waits for a shared permit applies (law A3). A retry
// waits for a permit again.
func TestTimeoutWhileAPermitIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := optest.Limited(0)
		calls := 0
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, int) (int, error) {
			calls++
			permits.SetLimit(0)
			return 0, errors.New("again")
		}), 10*time.Second, 2, strategies.FixedDelay[int](5, time.Second).RetryIfException(predicates.HasException),
			asyncop.WithBackend(permits), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		go func() {
			time.Sleep(5 * time.Second)
			permits.SetLimit(1)
		}()
		start := time.Now()
		require.Zero(t, consume(t, op, 2))
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, 1, calls)
		require.EqualValues(t, 2, op.Stats().Timeouts)
		synctest.Wait()
		require.Zero(t, permits.Stats().InUse)
	})
}

// A blocking call that outlives its timeout keeps its permit until it returns, even if
// its operator has ended.
func TestPermitOfACallThatOutlivesItsOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := optest.Limited(1)
		op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
			time.Sleep(time.Minute)
			return 0, nil
		}), time.Second, 1, asyncop.WithBackend(permits), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		require.Zero(t, consume(t, op, 1))
		require.NoError(t, op.Wait())
		require.Equal(t, 1, permits.Stats().InUse)
		other := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil }), time.Hour, 1,
			asyncop.WithBackend(permits))
		start := time.Now()
		require.Equal(t, 1, consume(t, other, 1))
		require.Equal(t, 59*time.Second, time.Since(start))
		synctest.Wait()
		require.Zero(t, permits.Stats().InUse)
	})
}

// Operators that are cancelled at random times lose no permit.
func TestWithBackend_CancelsLoseNoPermit(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(*gauge, time.Duration) asyncop.AsyncFunction[int, int]) {
		permits := optest.Limited(3)
		var all gauge
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 30 {
					ctx, cancel := context.WithCancel(context.Background())
					op := asyncop.UnorderedWait(kind(&all, time.Duration(i%3)*50*time.Microsecond), time.Minute, 8,
						asyncop.WithContext(ctx), asyncop.WithBackend(permits), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
					n := 0
					for range op.Results(slices.Values(make([]int, 40))) {
						if n++; n == (i+g)%40 {
							cancel()
						}
					}
					cancel()
					_ = op.Wait()
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool { return permits.Stats().InUse == 0 && all.now.Load() == 0 }, time.Minute, time.Millisecond)
	})
}
