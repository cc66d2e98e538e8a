package lookup_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type order struct{ id, user int }

// Elements that share a value keep their own data, whatever makes the calls, and whether
// or not the value comes from the cache.
func TestJoin(t *testing.T) {
	orders := []order{{1, 7}, {2, 7}, {3, 8}, {4, 7}, {5, 0}, {6, 8}}
	for kind, users := range map[string]func(calls *atomic.Int64) asyncop.AsyncFunction[int, string]{
		"blocking": func(calls *atomic.Int64) asyncop.AsyncFunction[int, string] {
			return asyncop.Blocking(func(_ context.Context, user int) (string, error) {
				calls.Add(1)
				if user == 0 {
					return "", asyncop.ErrNoResult
				}
				return fmt.Sprint("user ", user), nil
			})
		},
		"batched": func(calls *atomic.Int64) asyncop.AsyncFunction[int, string] {
			return asyncop.Batched(func(_ context.Context, users []int) ([]asyncop.Result[string], error) {
				results := make([]asyncop.Result[string], len(users))
				for i, user := range users {
					calls.Add(1)
					if results[i].Value = fmt.Sprint("user ", user); user == 0 {
						results[i].Err = asyncop.ErrNoResult
					}
				}
				return results, nil
			}, 4, time.Second)
		},
	} {
		for _, looks := range []string{"directly", "shared", "cached"} {
			t.Run(kind+" "+looks, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int64
					values := users(&calls)
					switch looks {
					case "shared":
						values = lookup.New(values, nil)
					case "cached":
						values = lookup.New(values, newMemory[int, string]())
					}
					f := lookup.Join(values, func(o order) int { return o.user },
						func(o order, name string) string { return fmt.Sprint(o.id, " ", name) })
					for range 2 {
						op := asyncop.OrderedWait(f, time.Minute, 10, silent)
						var got []string
						for s, err := range op.Results(slices.Values(orders)) {
							require.NoError(t, err)
							got = append(got, s)
						}
						require.Equal(t, []string{"1 user 7", "2 user 7", "3 user 8", "4 user 7", "6 user 8"}, got)
					}
					if looks == "cached" {
						require.EqualValues(t, 3, calls.Load())
					}
				})
			})
		}
	}
}

// Failures of a batch of other types fail its elements: an error, a panic, too few
// results, and a goroutine that ends.
func TestJoinOfABatchThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		users := asyncop.Batched(func(_ context.Context, users []int) ([]asyncop.Result[string], error) {
			switch calls++; calls {
			case 1:
				return nil, errBackend
			case 2:
				panic("boom")
			case 3:
				return nil, nil
			case 4:
				runtime.Goexit()
			}
			return []asyncop.Result[string]{{Value: "a"}, {Value: "b"}}, nil
		}, 2, time.Second)
		f := lookup.Join(users, func(o order) int { return o.user }, func(o order, name string) string { return fmt.Sprint(o.id, name) })
		op := asyncop.OrderedWaitWithRetry(f, time.Minute, 10,
			strategies.FixedDelay[string](9, time.Second).RetryIfException(predicates.HasException), silent)
		var got []string
		for s, err := range op.Results(slices.Values([]order{{1, 7}, {2, 8}})) {
			require.NoError(t, err)
			got = append(got, s)
		}
		require.Equal(t, []string{"1a", "2b"}, got)
		require.Equal(t, 5, calls)
		synctest.Wait() // the goroutine of the last call returns
		require.Zero(t, op.Stats().Running)
	})
}

// A join that does not return fails its element, even if it gets the value on a user's
// goroutine (law A6).
func TestJoinThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			values := asyncop.Func(func(_ context.Context, k string, result asyncop.ResultFuture[int]) error {
				go result.Complete(len(k))
				return nil
			})
			// Without a cache: a hit calls join on the operator's loop, which must not
			// end.
			f := lookup.Join(lookup.New(values, nil), itself, func(k string, n int) int {
				if n == 2 {
					breaks()
				}
				return n
			})
			op := asyncop.OrderedWait(f, time.Minute, 10, silent, asyncop.WithDropOnFailure())
			var got []int
			for n, err := range op.Results(slices.Values([]string{"a", "bb", "bb", "ccc"})) {
				require.NoError(t, err)
				got = append(got, n)
			}
			require.Equal(t, []int{1, 3}, got)
			require.EqualValues(t, 2, op.Stats().Dropped)
		})
	}
}
