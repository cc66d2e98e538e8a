package lookup_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// lengths is a call for many keys that records them.
type lengths struct {
	mu    sync.Mutex
	calls [][]string
}

func (l *lengths) call(_ context.Context, keys []string) ([]asyncop.Result[int], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, keys)
	results := make([]asyncop.Result[int], len(keys))
	for i, key := range keys {
		results[i].Value = len(key)
	}
	return results, nil
}

// Elements that ask for the same key share one member of a batch, and keys in the cache
// are not asked for.
func TestLookupsInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lengths
		f := lookup.New(asyncop.Batched(l.call, 5, time.Second), newMemory[string, int]())
		op := asyncop.OrderedWait(f, time.Minute, 10, silent)
		var got []int
		for n, err := range op.Results(slices.Values([]string{"a", "bb", "a", "ccc", "a", "bb", "dddd", "a"})) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, []int{1, 2, 1, 3, 1, 2, 4, 1}, got)
		require.Len(t, l.calls, 2) // concurrent, so in either order
		slices.SortFunc(l.calls, func(a, b []string) int { return len(b) - len(a) })
		require.Equal(t, []string{"a", "bb", "ccc"}, l.calls[0])
		require.Contains(t, l.calls[1], "dddd")
		require.Zero(t, f.Stats().Loading)
		require.NoError(t, op.Wait())
		synctest.Wait() // the last call posts its results before it returns its permit
		require.Zero(t, op.Stats().Running)
	})
}

// A load whose lookups have left before the call of its batch begins is not part of the
// call, and ends (law A5).
func TestLateLookupsInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lengths
		failed := false
		f := lookup.New(asyncop.Batched(func(ctx context.Context, keys []string) ([]asyncop.Result[int], error) {
			if !failed {
				failed = true
				return nil, errors.New("not yet")
			}
			return l.call(ctx, keys)
		}, 2, time.Second), nil)
		refresh := strategies.ReasonStrategyFunc[int](func(context.Context, *predicates.Attempt[int]) (strategies.Action, error) {
			return strategies.RetryAfter(time.Second).WithBefore(func(context.Context) error { time.Sleep(5 * time.Second); return nil }), nil
		})
		reason := predicates.NewReason("TEST_IN_BATCHES", true, false)
		op := asyncop.UnorderedWaitWithRetry(f, 4*time.Second, 10,
			strategies.ReasonAware(predicates.ByException[int](predicates.HasException, reason), refresh), asyncop.WithDropOnFailure(), asyncop.WithAttemptTimeout(time.Second), silent)
		op.In() <- "a"
		time.Sleep(1500 * time.Millisecond) // its batch has failed
		op.In() <- "bb"                     // its batch begins with that retry, and waits for its Before
		time.AfterFunc(6*time.Second, func() { close(op.In()) })
		for v := range op.Out() {
			t.Errorf("unexpected %v", v)
		}
		require.NoError(t, op.Wait())
		time.Sleep(10 * time.Second)
		require.Empty(t, l.calls)
		require.Zero(t, f.Stats().Loading)
		require.Zero(t, op.Stats().Running)
	})
}
