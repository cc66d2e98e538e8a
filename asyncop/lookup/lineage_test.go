package lookup_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	service "github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// takes returns a call that takes d.
func takes(d time.Duration, calls *atomic.Int64) func(ctx context.Context, key string) (int, error) {
	return func(context.Context, string) (int, error) {
		calls.Add(1)
		time.Sleep(d)
		return 1, nil
	}
}

// keysOf returns n elements of k keys, one key after another.
func keysOf(n, k int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i%k)
	}
	return keys
}

func collect(t *testing.T, results iter.Seq2[int, error]) (n int) {
	t.Helper()
	for _, err := range results {
		require.NoError(t, err)
		n++
	}
	return n
}

// Hits and elements that join a call do not count for a rate.
func TestFunction_HitsAndJoinersTakeNothingFromTheRate(t *testing.T) {
	for name, cache := range map[string]lookup.Cache[string, int]{"without a cache": nil, "with a cache": newMemory[string, int]()} {
		for _, kind := range []string{"Rate", "CallRate", "Rate and Cost"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if cache != nil {
						cache = newMemory[string, int]()
					}
					var calls atomic.Int64
					f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), cache)
					limit, costs := service.Rate(100, time.Second), []asyncop.Option{}
					switch kind {
					case "CallRate":
						limit = service.CallRate(100, time.Second)
					case "Rate and Cost":
						limit = service.Rate(1000, time.Second)
						costs = append(costs, asyncop.Cost(func(string) float64 { return 10 }))
					}
					op := asyncop.OrderedWait(f, time.Minute, 500, silent, asyncop.WithBackend(service.New("b", limit), costs...))
					start := time.Now()
					require.Equal(t, 500, collect(t, op.Results(slices.Values(keysOf(500, 10)))))
					require.EqualValues(t, 10, calls.Load())
					require.Less(t, time.Since(start), 1200*time.Millisecond)
				})
			})
		}
	}
}

// A hit and an element that joins a call do not wait while the backend refuses calls.
func TestFunction_HitsAndJoinersDoNotWaitForTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), newMemory[string, int]())
		b := service.New("b", service.Rate(1, time.Minute))
		op := asyncop.UnorderedWait(f, time.Hour, 100, silent, asyncop.WithBackend(b))
		elements := make(chan string)
		defer close(elements)
		var done atomic.Int64
		go func() {
			for range op.Results(func(yield func(string) bool) {
				for e := range elements {
					if !yield(e) {
						return
					}
				}
			}) {
				done.Add(1)
			}
		}()
		send := func(keys ...string) {
			for _, key := range keys {
				elements <- key
			}
		}
		send("a")
		time.Sleep(500 * time.Millisecond)
		send("b", "a", "a") // the call of b waits for a minute, the others join a running call
		time.Sleep(600 * time.Millisecond)
		require.EqualValues(t, 3, done.Load())
		send("c", "a", "a")
		time.Sleep(time.Second)
		require.EqualValues(t, 5, done.Load(), "hits")
		send("b", "c", "b") // they join calls that begin later
		time.Sleep(60 * time.Second)
		require.EqualValues(t, 8, done.Load(), "b: three elements")
		require.EqualValues(t, 2, calls.Load())
		time.Sleep(60 * time.Second)
		require.EqualValues(t, 10, done.Load())
		require.EqualValues(t, 3, calls.Load())
	})
}

// Elements that wait for a call hold no permit, so the call of another key can begin.
func TestFunction_JoinersHoldNoPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), nil)
		b := service.New("b", service.Limit(2))
		op := asyncop.OrderedWait(f, time.Minute, 20, silent, asyncop.WithMaxConcurrentCalls(2), asyncop.WithBackend(b))
		start := time.Now()
		require.Equal(t, 11, collect(t, op.Results(slices.Values(append(repeat("a", 10), "b")))))
		require.Equal(t, time.Second, time.Since(start))
		require.EqualValues(t, 2, calls.Load())
	})
}

var policies = map[string]strategies.Retry[int]{
	"jitter": strategies.ExponentialBackoff[int](3, time.Second, time.Minute, 2).WithJitter(strategies.FullJitter).RetryIfException(predicates.HasException),
}

// The elements of a key share the attempts, however many there are and whenever they
// arrive.
func TestFunction_ElementsShareRetries(t *testing.T) {
	for name, policy := range policies {
		for _, kind := range []string{"ordered", "unordered"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls, failures atomic.Int64
					f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
						calls.Add(1)
						time.Sleep(10 * time.Millisecond)
						return 0, errBackend
					}), nil)
					fn := asyncop.HandleFailure(f, func(_ context.Context, failure asyncop.Failure[string]) ([]int, error) {
						failures.Add(1)
						if !errors.Is(failure.Err, errBackend) {
							t.Error(failure.Err)
						}
						return []int{0}, nil
					})
					opts := []asyncop.Option{silent, asyncop.WithDrainRetries()}
					create := asyncop.OrderedWaitWithRetry[string, int]
					if kind != "ordered" {
						create = asyncop.UnorderedWaitWithRetry[string, int]
					}
					op := create(fn, time.Hour, 100, policy, opts...)
					got := collect(t, op.Results(func(yield func(string) bool) {
						for range 30 { // within the first back-off
							yield("a")
							time.Sleep(time.Millisecond)
						}
					}))
					require.Equal(t, 30, got)
					require.EqualValues(t, 30, failures.Load())
					require.EqualValues(t, 4, calls.Load())
				})
			})
		}
	}
}

// A throttled call uses up no retry of any element that has waited for it (law B6).
func TestFunction_ThrottledCallUsesUpNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
			time.Sleep(10 * time.Millisecond)
			if calls.Add(1) <= 5 {
				return 0, &httpretry.StatusError{StatusCode: http.StatusTooManyRequests, Delay: time.Second, HasDelay: true}
			}
			return 1, nil
		}), nil)
		twice := strategies.ReasonStrategyFunc[int](func(_ context.Context, a *predicates.Attempt[int]) (strategies.Action, error) {
			if a.Number > 2 {
				return strategies.Action{}, nil
			}
			return strategies.RetryAfter(time.Second), nil
		})
		policy := strategies.ReasonAware(httpretry.Classifier[int](), twice).Idempotent().Immediate()
		op := asyncop.OrderedWaitWithRetry(f, time.Minute, 100, policy, silent, asyncop.WithDrainRetries(), asyncop.WithBackend(service.New("b")))
		require.Equal(t, 20, collect(t, op.Results(slices.Values(repeat("a", 20)))))
		require.EqualValues(t, 6, calls.Load())
	})
}

// The oldest element decides. After its timeout the next element decides, and the others
// still make no call of their own.
func TestFunction_ElementsShareRetries_LeaderTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, timeouts atomic.Int64
		f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
			calls.Add(1)
			time.Sleep(10 * time.Millisecond)
			return 0, errBackend
		}), nil)
		fn := asyncop.HandleFailure(f, func(_ context.Context, failure asyncop.Failure[string]) ([]int, error) {
			_, ok := errors.AsType[*asyncop.TimeoutError](failure.Err)
			if ok {
				timeouts.Add(1)
			}
			return []int{0}, nil
		})
		policy := strategies.FixedDelay[int](1000, time.Second).RetryIfException(predicates.HasException)
		op := asyncop.UnorderedWaitWithRetry(fn, 5*time.Second, 100, policy, silent)
		start := time.Now()
		require.Equal(t, 20, collect(t, op.Results(func(yield func(string) bool) {
			for range 20 {
				yield("a")
				time.Sleep(300 * time.Millisecond)
			}
			time.Sleep(5 * time.Second) // the end of the input ends retries
		})))
		require.EqualValues(t, 20, timeouts.Load())
		require.InDelta(t, time.Since(start).Seconds(), float64(calls.Load()), 1.5, "about one call a second")
	})
}

// A key that succeeds again, and then fails, has a new lineage.
func TestFunction_ElementsShareRetries_NewLineage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
			time.Sleep(10 * time.Millisecond)
			if calls.Add(1)%4 != 0 {
				return 0, errBackend
			}
			return 1, nil
		}), nil)
		policy := strategies.FixedDelay[int](3, time.Second).RetryIfException(predicates.HasException)
		op := asyncop.UnorderedWaitWithRetry(f, time.Hour, 100, policy, silent)
		require.Equal(t, 100, collect(t, op.Results(func(yield func(string) bool) {
			for range 10 {
				for range 10 {
					yield("a")
				}
				time.Sleep(4 * time.Second)
			}
		})))
		require.EqualValues(t, 40, calls.Load())
	})
}

// The end of the input ends the back-off of all elements of a key, with one call.
func TestFunction_ElementsShareRetries_EndOfInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
			time.Sleep(10 * time.Millisecond)
			if calls.Add(1) == 1 {
				return 0, errBackend
			}
			return 1, nil
		}), nil)
		policy := strategies.FixedDelay[int](3, time.Hour).RetryIfException(predicates.HasException)
		op := asyncop.OrderedWaitWithRetry(f, 2*time.Hour, 100, policy, silent)
		start := time.Now()
		go func() {
			for range 30 {
				op.In() <- "a"
				time.Sleep(time.Millisecond)
			}
			close(op.In())
		}()
		got := 0
		for range op.Out() {
			got++
		}
		require.NoError(t, op.Err())
		require.Equal(t, 30, got)
		require.EqualValues(t, 2, calls.Load())
		require.Less(t, time.Since(start), time.Second)
	})
}

// In batches, too, hits do not count for a rate, and failures are shared.
func TestFunction_ElementsShareRetries_Batched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, keys atomic.Int64
		batched := asyncop.Batched(func(_ context.Context, in []string) ([]asyncop.Result[int], error) {
			keys.Add(int64(len(in)))
			time.Sleep(10 * time.Millisecond)
			if calls.Add(1) <= 2 {
				return nil, errBackend
			}
			return make([]asyncop.Result[int], len(in)), nil
		}, 10, time.Millisecond)
		f := lookup.New(batched, newMemory[string, int]())
		policy := strategies.ExponentialBackoff[int](3, time.Second, time.Minute, 2).WithJitter(strategies.FullJitter).RetryIfException(predicates.HasException)
		op := asyncop.OrderedWaitWithRetry(f, time.Hour, 100, policy, silent, asyncop.WithDrainRetries(), asyncop.WithBackend(service.New("b", service.Rate(3, time.Hour))))
		require.Equal(t, 200, collect(t, op.Results(slices.Values(repeat("a", 200)))))
		require.EqualValues(t, 3, keys.Load())
	})
}

// An element waits for the retry of its key, although it is due in a batch of other keys.
func TestFunction_ElementsShareRetries_LaterMemberOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var calls []time.Duration // for the key "a"
		f := lookup.New(asyncop.Batched(func(_ context.Context, keys []string) ([]asyncop.Result[int], error) {
			results := make([]asyncop.Result[int], len(keys))
			for i, key := range keys {
				if key == "a" {
					calls = append(calls, time.Since(start))
				}
				if key == "a" && len(calls) == 1 {
					results[i].Err = errBackend
				}
			}
			time.Sleep(time.Second)
			return results, nil
		}, 2, time.Minute), nil)
		retry := strategies.FixedDelay[int](3, 10*time.Second).RetryIfException(predicates.HasException)
		op := asyncop.UnorderedWaitWithRetry(f, time.Minute, 10, retry, silent, asyncop.WithMaxConcurrentCalls(1), asyncop.WithDrainRetries())
		// All wait while the first batch runs. Then "a" fails in a batch with "e", and is due
		// again in a batch with "b".
		require.Equal(t, 6, collect(t, op.Results(slices.Values([]string{"c", "d", "a", "e", "b", "a"}))))
		require.Len(t, calls, 2)
		require.GreaterOrEqual(t, calls[1]-calls[0], 11*time.Second, "a second and the delay of the retry")
	})
}

// Elements that wait for a call of this run count as running when the budget is spent.
func TestFunction_BudgetEndsAfterAllWhoWaitForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), nil)
		op := asyncop.UnorderedWait(f, time.Hour, 100, silent, asyncop.WithBackend(service.New("b"), asyncop.Budget(1)))
		require.Equal(t, 90, collect(t, op.Results(slices.Values(append(repeat("a", 10), repeat("b", 80)...)))), "both calls had begun")

		op = asyncop.UnorderedWait(f, time.Hour, 100, silent, asyncop.WithBackend(service.New("b"), asyncop.Budget(1)), asyncop.WithMaxConcurrentCalls(1))
		got := 0
		for _, err := range op.Results(slices.Values(append(repeat("a", 10), repeat("b", 80)...))) {
			if err != nil {
				require.ErrorIs(t, err, asyncop.ErrBudgetSpent)
				break
			}
			got++
		}
		require.Equal(t, 10, got)
		require.EqualValues(t, 3, calls.Load())
	})
}

// A spent budget does not keep an element from the answer of the cache, even if an older
// element needs a call.
func TestFunction_CacheAnswersAfterTheBudgetIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), newMemory[string, int]())
		op := asyncop.UnorderedWait(f, time.Hour, 100, silent, asyncop.WithBackend(service.New("b"), asyncop.Budget(2)), asyncop.WithMaxConcurrentCalls(1))
		got := 0
		for _, err := range op.Results(slices.Values([]string{"a", "b", "c", "b", "b"})) { // each b is a miss when it is accepted
			if err != nil {
				require.ErrorIs(t, err, asyncop.ErrBudgetSpent)
				break
			}
			got++
		}
		require.Equal(t, 4, got, "all but c")
		require.EqualValues(t, 2, calls.Load())
	})
}

// A wrapper of another package may look up another key than its element, so its elements
// take permits.
type lengthOf struct{ *lookup.Function[string, int] }

func (w lengthOf) AsyncInvoke(ctx context.Context, in string, result asyncop.ResultFuture[int]) error {
	return w.Function.AsyncInvoke(ctx, in[:1], result)
}

func (w lengthOf) Unwrap() any { return w.Function }

func TestFunction_OwnWrapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), newMemory[string, int]())
		op := asyncop.OrderedWait(lengthOf{f}, time.Hour, 100, silent, asyncop.WithBackend(service.New("b", service.Limit(1), service.Rate(100, time.Second))))
		require.Equal(t, 4, collect(t, op.Results(slices.Values([]string{"a", "ab", "a", "b"}))))
		require.EqualValues(t, 2, calls.Load())
	})
}

func TestFunction_KeyThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		f := lookup.New(asyncop.Blocking(takes(time.Second, &calls)), nil)
		fn := lookup.Join(f, func(in string) string { return in[:1] }, func(_ string, n int) int { return n })
		policy := strategies.FixedDelay[int](3, time.Second).RetryIfException(predicates.HasException)
		op := asyncop.OrderedWaitWithRetry(fn, time.Hour, 100, policy, silent, asyncop.WithDropOnFailure(), asyncop.WithBackend(service.New("b")))
		require.Equal(t, 2, collect(t, op.Results(slices.Values([]string{"a", "", "b"}))))
		require.EqualValues(t, 2, calls.Load())
	})
}
