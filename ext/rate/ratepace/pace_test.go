package ratepace_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/rate/ratepace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Attempts start as the limiter says, neither early nor much later.
func TestAttemptsKeepTheRate(t *testing.T) {
	for _, limit := range []rate.Limit{1, 3, 100, rate.Inf} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const burst, elements = 5, 50
				var starts []time.Duration
				start := time.Now()
				op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
					starts = append(starts, time.Since(start))
					result.Complete(in)
					return nil
				}), time.Hour, 10, asyncop.WithPace(ratepace.New(rate.NewLimiter(limit, burst))))
				for _, err := range op.Results(slices.Values(make([]int, elements))) {
					require.NoError(t, err)
				}
				require.Len(t, starts, elements)
				for i, at := range starts {
					due := time.Duration(max(0, float64(i-burst+1)) / float64(limit) * 1e9)
					require.InDelta(t, due, at, float64(time.Microsecond), "attempt %d", i)
				}
			})
		})
	}
}

func TestTake(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	limiter := rate.NewLimiter(10, 1)
	p := ratepace.New(limiter)
	require.Zero(t, p.Take(now))
	wait := p.Take(now)
	require.Equal(t, 100*time.Millisecond, wait)
	require.Equal(t, wait, p.Take(now), "who waits takes no token")
	require.NotZero(t, p.Take(now.Add(wait-time.Millisecond)))
	require.Zero(t, p.Take(now.Add(wait)))

	limiter.SetLimitAt(now, 0)
	require.Equal(t, time.Second, p.Take(now.Add(wait)))
	limiter.SetLimitAt(now, 0.1)
	require.Equal(t, time.Second, p.Take(now.Add(wait)), "the limit may be raised until then")
	limiter.SetLimitAt(now, rate.Inf)
	require.Zero(t, p.Take(now.Add(wait)))

	none := ratepace.New(rate.NewLimiter(10, 0))
	require.Positive(t, none.Take(now))
	require.PanicsWithValue(t, "ratepace: New: nil limiter", func() { ratepace.New(nil) })
}

func Example() {
	limiter := rate.NewLimiter(100, 1) // 100 attempts a second, one at a time
	lookup := asyncop.Blocking(func(_ context.Context, key string) (string, error) { return "<" + key + ">", nil })
	op := asyncop.OrderedWait(lookup, 5*time.Second, 1000, asyncop.WithPace(ratepace.New(limiter)))
	start := time.Now()
	for row, err := range op.Results(slices.Values([]string{"lhr", "cdg", "fra"})) {
		fmt.Println(row, err)
	}
	fmt.Println(time.Since(start) >= 20*time.Millisecond)
	// Output:
	// <lhr> <nil>
	// <cdg> <nil>
	// <fra> <nil>
	// true
}
