package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
)

// quiet keeps expected failures out of the log.
func quiet() asyncop.Option { return asyncop.WithLogger(slog.New(slog.DiscardHandler)) }

// firstInts returns the numbers below n.
func firstInts(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// Law Q1: results are in the order of the elements, in whatever order the calls end. 64
// calls run concurrently.
func TestMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		results, err := asyncop.Map(t.Context(), firstInts(1000), asyncop.Blocking(func(_ context.Context, n int) (string, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Duration(n*7%13) * time.Millisecond)
			return fmt.Sprint(n), nil
		}), nil)
		require.NoError(t, err)
		require.Len(t, results, 1000)
		for i, r := range results {
			require.Equal(t, fmt.Sprint(i), r)
		}
		require.LessOrEqual(t, most.Load(), int64(64))
		require.Greater(t, most.Load(), int64(32))
	})
}

// Options are applied: more calls than default slots run concurrently.
func TestMapWithManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		results, err := asyncop.Map(t.Context(), firstInts(2000), asyncop.Blocking(func(_ context.Context, n int) (int, error) {
			time.Sleep(time.Second)
			return n, nil
		}), nil, asyncop.WithMaxConcurrentCalls(2000))
		require.NoError(t, err)
		require.Equal(t, firstInts(2000), results)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// The first failure ends Map, and no call begins after it.
func TestMapFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		results, err := asyncop.Map(t.Context(), firstInts(1000), asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
			calls.Add(1)
			if n == 5 {
				time.Sleep(time.Second) // until all that may run at once do
				return 0, optest.ErrBroken
			}
			<-ctx.Done()
			return n, nil
		}), nil, quiet())
		require.Nil(t, results)
		e, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 5, e.Element)
		require.ErrorIs(t, err, optest.ErrBroken)
		synctest.Wait()
		require.EqualValues(t, 64, calls.Load())
	})
}

func TestMapIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(optest.ErrTestOver) })
		results, err := asyncop.Map(ctx, firstInts(3), asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}), nil, quiet())
		require.Nil(t, results)
		require.ErrorIs(t, err, optest.ErrTestOver)
	})
}

// Retries continue until the end, as long as the strategy allows, because there is no
// timeout.
func TestMapWithRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fn := asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
			if asyncop.AttemptFromContext(ctx) <= n {
				return 0, optest.ErrBroken
			}
			return n, nil
		})
		results, err := asyncop.Map(t.Context(), []int{2, 0, 1}, fn, optest.RetryAllOf[int](2, 1000*time.Hour))
		require.NoError(t, err)
		require.Equal(t, []int{2, 0, 1}, results)
		require.Equal(t, 2000*time.Hour, time.Since(start))
		_, err = asyncop.Map(t.Context(), []int{2, 3}, fn, optest.RetryAllOf[int](2, time.Second), quiet())
		require.ErrorIs(t, err, optest.ErrBroken)
	})
}

// An element has as many results as its call returns. A dropped element has no results.
func TestMap_BlockingMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results, err := asyncop.Map(t.Context(), firstInts(5), asyncop.BlockingMany(func(_ context.Context, n int) ([]int, error) {
			if n == 3 {
				return nil, optest.ErrBroken
			}
			return firstInts(n), nil
		}), nil, asyncop.WithDropOnFailure(), quiet())
		require.NoError(t, err)
		require.Equal(t, []int{0, 0, 1, 0, 1, 2, 3}, results)
		results, err = asyncop.Map(t.Context(), nil, asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil }), nil)
		require.NoError(t, err)
		require.Empty(t, results)
	})
}

// Several goroutines may pass the same options to Map, which does not append to their
// slice.
func TestMapLeavesItsOptions(t *testing.T) {
	opts := append(make([]asyncop.Option, 0, 4), asyncop.WithName("x"))
	_, err := asyncop.Map(t.Context(), []int{1}, asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil }), nil, opts...)
	require.NoError(t, err)
	require.Nil(t, opts[:2][1])
}

func TestMapRefusesNonsense(t *testing.T) {
	fn := asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil })
	coordinator, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	defer func() { require.NoError(t, coordinator.Close()) }()
	for want, f := range map[string]func(){
		"Map: nil context":  func() { _, _ = asyncop.Map(nil, firstInts(1), fn, nil) },
		"Map: nil function": func() { _, _ = asyncop.Map[int, int](t.Context(), firstInts(1), nil, nil) },
		"Map: WithContext: the context is the first argument": func() {
			_, _ = asyncop.Map(t.Context(), firstInts(1), fn, nil, asyncop.WithContext(t.Context()))
		},
		"Map: WithCheckpoints: a slice has no barriers": func() {
			_, _ = asyncop.Map(t.Context(), firstInts(1), fn, nil, asyncop.WithCheckpoints(coordinator), asyncop.WithName("map"))
		},
	} {
		require.Contains(t, optest.PanicOf(f), want)
	}
}
