package failsafecall_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// An open breaker costs no attempt: with one retry each, all elements survive a breakdown of a minute.
func TestOpenBreakerCostsNoRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breaker := opensAfter(1)
		start := time.Now()
		calls := 0
		fn := failsafecall.Guard(breaker, asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			if calls++; time.Since(start) < 900*time.Millisecond {
				return 0, errors.New("down")
			}
			return in, nil
		}))
		op := asyncop.OrderedWaitWithRetry(fn, time.Hour, 20,
			strategies.FixedDelay[int](1, 0).RetryIfException(predicates.HasException), silent,
			asyncop.WithMaxConcurrentCalls(1), asyncop.WithPace(failsafecall.Pace(breaker)))
		var got []int
		for n, err := range op.Results(slices.Values([]int{1, 2, 3, 4, 5})) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, []int{1, 2, 3, 4, 5}, got)
		require.Equal(t, 6, calls)
		require.EqualValues(t, 6, op.Stats().Attempts)
	})
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breaker := opensAfter(1)
		p := failsafecall.Pace(breaker)
		require.Zero(t, p.Take(time.Now()))
		require.Zero(t, p.Take(time.Now()))
		breaker.Open()
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, 700*time.Millisecond, p.Take(time.Now()))
		time.Sleep(700 * time.Millisecond)
		require.Zero(t, p.Take(time.Now()), "on trial")
		require.True(t, breaker.TryAcquirePermit())
		require.Equal(t, 20*time.Millisecond, p.Take(time.Now()), "one at a time")
		time.Sleep(20 * time.Millisecond)
		require.Zero(t, p.Take(time.Now()))
		breaker.RecordSuccess()
		require.Zero(t, p.Take(time.Now()))
		require.PanicsWithValue(t, "failsafecall: Pace: nil breaker", func() { failsafecall.Pace(nil) })
	})
}
