package failsafecall_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBackend = errors.New("backend failed")

var silent = asyncop.WithLogger(slog.New(slog.DiscardHandler))

// opensAfter returns a breaker that opens after so many failures in a row, for a second.
func opensAfter(failures uint) circuitbreaker.CircuitBreaker[any] {
	return circuitbreaker.NewBuilder[any]().WithFailureThreshold(failures).WithDelay(time.Second).
		WithSuccessThreshold(1).Build()
}

// future takes an outcome.
type future struct {
	results []int
	err     error
	done    int
}

func (f *future) Complete(results ...int)         { f.results, f.done = results, f.done+1 }
func (f *future) CompleteExceptionally(err error) { f.err, f.done = err, f.done+1 }

// manual is a function whose calls the test ends.
type manual struct{ calls []asyncop.ResultFuture[int] }

func (m *manual) AsyncInvoke(_ context.Context, _ string, result asyncop.ResultFuture[int]) error {
	m.calls = append(m.calls, result)
	return nil
}

// What each end of a call is for the breaker.
func TestWhatIsRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		end                 func(result asyncop.ResultFuture[int])
		failures, successes uint
	}{
		"one result":       {func(r asyncop.ResultFuture[int]) { r.Complete(1) }, 0, 1},
		"no result":        {func(r asyncop.ResultFuture[int]) { r.Complete() }, 0, 1},
		"a bad result":     {func(r asyncop.ResultFuture[int]) { r.Complete(-1) }, 1, 0},
		"several":          {func(r asyncop.ResultFuture[int]) { r.Complete(-1, 2) }, 0, 1},
		"several bad ones": {func(r asyncop.ResultFuture[int]) { r.Complete(1, 2, 3) }, 1, 0},
		"an error":         {func(r asyncop.ResultFuture[int]) { r.CompleteExceptionally(errBackend) }, 1, 0},
		"a harmless error": {func(r asyncop.ResultFuture[int]) { r.CompleteExceptionally(asyncop.ErrStopped) }, 0, 1},
		"a nil error":      {func(r asyncop.ResultFuture[int]) { r.CompleteExceptionally(nil) }, 1, 0},
		"a panic": {func(r asyncop.ResultFuture[int]) {
			r.CompleteExceptionally(&asyncop.PanicError{Value: asyncop.ErrStopped})
		}, 1, 0},
		"the first of two": {func(r asyncop.ResultFuture[int]) { r.Complete(1); r.CompleteExceptionally(errBackend) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			breaker := circuitbreaker.NewBuilder[any]().WithFailureThresholdRatio(100, 100).
				HandleIf(func(result any, err error) bool {
					slice, isSlice := result.([]int)
					return err != nil && !errors.Is(err, asyncop.ErrStopped) || result == -1 || isSlice && len(slice) == 3
				}).Build()
			fn := new(manual)
			var out future
			require.NoError(t, failsafecall.Guard[string, int](breaker, fn).AsyncInvoke(t.Context(), "a", &out))
			test.end(fn.calls[0])
			require.Equal(t, test.failures, breaker.Metrics().Failures())
			require.Equal(t, test.successes, breaker.Metrics().Successes())
			require.Positive(t, out.done, "the outcome goes on")
		})
	}
}

// An error that AsyncInvoke returns, its panic and Goexit are failures, and go on to the operator.
func TestFailuresOfAsyncInvoke(t *testing.T) {
	for name, end := range map[string]func() error{
		"error":  func() error { return errBackend },
		"panic":  func() error { panic("boom") },
		"Goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			breaker := opensAfter(1)
			fn := failsafecall.Guard(breaker, asyncop.Func(func(context.Context, string, asyncop.ResultFuture[int]) error {
				return end()
			}))
			op := asyncop.OrderedWait(fn, time.Minute, 1, silent)
			for _, err := range op.Results(slices.Values([]string{"a"})) {
				var p *asyncop.PanicError
				assert.True(t, errors.Is(err, errBackend) || errors.As(err, &p), "%v", err)
			}
			require.True(t, breaker.IsOpen())
		})
	}
}

// The state is that after the call when the outcome is handed in.
func TestRecordedBeforeTheOutcome(t *testing.T) {
	breaker := opensAfter(1)
	fn := new(manual)
	open := false
	require.NoError(t, failsafecall.Guard[string, int](breaker, fn).AsyncInvoke(t.Context(), "a",
		looking(func() { open = breaker.IsOpen() })))
	fn.calls[0].CompleteExceptionally(errBackend)
	require.True(t, open)
}

type looking func()

func (l looking) Complete(...int)             { l() }
func (l looking) CompleteExceptionally(error) { l() }

// A call whose time is over is a failure; what it answers later is not recorded. A cancel is none, unless on trial.
func TestEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breaker := opensAfter(2)
		fn := new(manual)
		guarded := failsafecall.Guard[string, int](breaker, fn)
		ask := func(ctx context.Context) {
			t.Helper()
			require.NoError(t, guarded.AsyncInvoke(ctx, "a", new(future)))
		}
		cancelled, cancel := context.WithCancel(t.Context())
		for range 5 {
			ask(cancelled)
		}
		cancel()
		synctest.Wait()
		require.Zero(t, breaker.Metrics().Executions())
		fn.calls[0].CompleteExceptionally(errBackend)
		require.Zero(t, breaker.Metrics().Executions())

		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask(limited)
		ask(limited)
		time.Sleep(time.Second)
		synctest.Wait()
		require.True(t, breaker.IsOpen())
		fn.calls[6].Complete(1)
		require.True(t, breaker.IsOpen())

		time.Sleep(time.Second)
		trial, cancel := context.WithCancel(t.Context())
		ask(trial)
		require.True(t, breaker.IsHalfOpen())
		require.ErrorIs(t, guarded.AsyncInvoke(t.Context(), "a", new(future)), circuitbreaker.ErrOpen)
		cancel()
		synctest.Wait()
		require.False(t, breaker.IsHalfOpen(), "the permit is lost, and the breaker stuck")
		time.Sleep(time.Second)
		ask(t.Context())
		fn.calls[len(fn.calls)-1].Complete(1)
		require.True(t, breaker.IsClosed())
	})
}

// A refusal says that nothing was sent, why, and for how long.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breaker := opensAfter(1)
		breaker.Open()
		time.Sleep(300 * time.Millisecond)
		fn := new(manual)
		err := failsafecall.Guard[string, int](breaker, fn).AsyncInvoke(t.Context(), "a", new(future))
		require.ErrorIs(t, err, circuitbreaker.ErrOpen)
		var stage *predicates.StageError
		require.ErrorAs(t, err, &stage)
		require.Equal(t, predicates.ClientDispatch, stage.Stage)
		var demand predicates.ServerPushback
		require.ErrorAs(t, err, &demand)
		delay, ok := demand.RetryPushback()
		require.True(t, ok)
		require.Equal(t, 700*time.Millisecond, delay)
		reason, ok := predicates.Named[int]()(&predicates.Attempt[int]{Err: err})
		require.True(t, ok)
		require.Equal(t, predicates.CircuitBreakerOpen, reason)
		require.Empty(t, fn.calls)
	})
}

// Elements that the breaker refuses wait as long as it does, without a permit, although their calls must not happen twice.
func TestElementsWaitForTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		breaker := opensAfter(1)
		breaker.Open()
		start := time.Now()
		fn := failsafecall.Guard(breaker, asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			calls.Add(1)
			assert.GreaterOrEqual(t, time.Since(start), time.Second)
			time.Sleep(time.Millisecond)
			return in, nil
		}))
		op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 10,
			strategies.ReasonAware(predicates.Named[int](), nil), silent)
		var got []int
		for n, err := range op.Results(slices.Values([]int{1, 2, 3, 4, 5})) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, []int{1, 2, 3, 4, 5}, got)
		require.EqualValues(t, 5, calls.Load())
		require.Less(t, time.Since(start), 1100*time.Millisecond)
		require.LessOrEqual(t, op.Stats().Attempts, int64(5+5+4))
	})
}

// What the breaker refuses is not in doubt.
func TestRefusedElementIsNotInDoubt(t *testing.T) {
	breaker := opensAfter(1)
	breaker.Open()
	var failures []asyncop.Failure[int]
	op := asyncop.OrderedWaitWithRetry(
		failsafecall.Guard(breaker, asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil })),
		time.Minute, 1, strategies.ReasonAware(predicates.Named[int](), strategies.BestEffort[int]().WithMaxRetries(0)), silent,
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
			failures = append(failures, f)
			return nil
		}))
	for range op.Results(slices.Values([]int{1})) {
		t.Error("a result")
	}
	require.Len(t, failures, 1)
	require.False(t, failures[0].InDoubt)
	require.Equal(t, predicates.CircuitBreakerOpen, failures[0].Reason)
}

// opener is a function with optional interfaces.
type opener struct {
	manual
	opened bool
}

func (o *opener) Open(context.Context) error { o.opened = true; return nil }

func TestGuardKeepsOptionalInterfaces(t *testing.T) {
	fn := new(opener)
	op := asyncop.OrderedWait(failsafecall.Guard[string, int](opensAfter(1), fn), time.Minute, 1)
	close(op.In())
	require.NoError(t, op.Wait())
	require.True(t, fn.opened)
}

func TestGuardPanics(t *testing.T) {
	require.PanicsWithValue(t, "failsafecall: Guard: nil breaker",
		func() { failsafecall.Guard[string, int](nil, new(manual)) })
	require.PanicsWithValue(t, "failsafecall: Guard: nil function",
		func() { failsafecall.Guard[string, int](opensAfter(1), nil) })
}
