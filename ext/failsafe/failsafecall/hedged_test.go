package failsafecall_test

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var silent = asyncop.WithLogger(slog.New(slog.DiscardHandler))

func afterASecond() hedgepolicy.HedgePolicy[int] {
	return hedgepolicy.NewBuilderWithDelay[int](time.Second).Build()
}

func always(context.Context, int) bool { return true }

// The first call hangs, the second answers, and the context of the first ends.
func TestHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, ended atomic.Int64
		fn := failsafecall.Hedged(func(ctx context.Context, in int) (int, error) {
			if calls.Add(1) == 1 {
				<-ctx.Done()
				ended.Add(1)
				return 0, ctx.Err()
			}
			require.Equal(t, 1, asyncop.AttemptFromContext(ctx), "the values of the attempt")
			return in, nil
		}, afterASecond(), always)
		op := asyncop.OrderedWait(fn, time.Minute, 1)
		start := time.Now()
		for n, err := range op.Results(slices.Values([]int{7})) {
			require.NoError(t, err)
			require.Equal(t, 7, n)
		}
		require.Equal(t, time.Second, time.Since(start))
		synctest.Wait()
		require.EqualValues(t, 2, calls.Load())
		require.EqualValues(t, 1, ended.Load())
	})
}

// The timeout of the element ends all its calls.
func TestTimeoutOfHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		fn := failsafecall.Hedged(func(ctx context.Context, _ int) (int, error) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return 0, ctx.Err()
		}, afterASecond(), always)
		op := asyncop.OrderedWait(fn, 3*time.Second, 1, silent)
		for _, err := range op.Results(slices.Values([]int{7})) {
			var timeout *asyncop.TimeoutError
			require.ErrorAs(t, err, &timeout)
		}
		synctest.Wait()
		require.Zero(t, running.Load())
	})
}

// reading is an element that decides whether its call may happen twice.
type reading bool

func (r reading) Idempotent() bool { return bool(r) }

// Only calls that may happen twice are hedged; others are refused, and not made.
func TestHedged_OnlyRepeatableCalls(t *testing.T) {
	yes := func(context.Context, reading) bool { return true }
	var calls atomic.Int64
	call := func(context.Context, reading) (int, error) { calls.Add(1); return 1, nil }
	run := func(in reading, repeatable func(context.Context, reading) bool) error {
		var failures []asyncop.Failure[reading]
		op := asyncop.OrderedWaitWithRetry(failsafecall.Hedged(call, afterASecond(), repeatable), time.Minute, 1,
			strategies.ReasonAware(predicates.Named[int](), nil), silent,
			asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[reading]) error {
				failures = append(failures, f)
				return nil
			}))
		for _, err := range op.Results(slices.Values([]reading{in})) {
			require.NoError(t, err)
		}
		if len(failures) == 0 {
			return nil
		}
		require.False(t, failures[0].InDoubt)
		require.Equal(t, 1, failures[0].Attempts, "another attempt is of no use")
		return failures[0].Err
	}
	require.NoError(t, run(true, nil))
	require.EqualValues(t, 1, calls.Load())
	require.ErrorIs(t, run(false, yes), failsafecall.ErrNotRepeatable, "the element counts")
	require.EqualValues(t, 1, calls.Load())

	never := failsafecall.Hedged(func(context.Context, int) (int, error) { calls.Add(1); return 1, nil }, afterASecond(), nil)
	op := asyncop.OrderedWait(never, time.Minute, 1, silent)
	for _, err := range op.Results(slices.Values([]int{1})) {
		require.ErrorIs(t, err, failsafecall.ErrNotRepeatable)
	}
	require.EqualValues(t, 1, calls.Load())
}

// failsafe-go calls on goroutines of its own, where a panic would end the program and
// Goexit hang the attempt (law A6).
func TestPanicOfAHedge(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			fn := failsafecall.Hedged(func(context.Context, int) (int, error) { end(); return 0, nil }, afterASecond(), always)
			op := asyncop.OrderedWait(fn, time.Minute, 1, silent)
			for _, err := range op.Results(slices.Values([]int{1})) {
				var p *asyncop.PanicError
				require.ErrorAs(t, err, &p)
				require.Contains(t, string(p.Stack), "hedged_test.go")
			}
		})
	}
}

func TestHedgedPanics(t *testing.T) {
	require.PanicsWithValue(t, "failsafecall: Hedged: nil call", func() { failsafecall.Hedged[int](nil, afterASecond(), always) })
	require.PanicsWithValue(t, "failsafecall: Hedged: nil policy", func() {
		failsafecall.Hedged(func(context.Context, int) (int, error) { return 0, nil }, nil, always)
	})
}
