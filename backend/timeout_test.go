package backend_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// lateRun calls elements with a short timeout, in virtual time, and returns the results
// and the failures.
func lateRun(
	t *testing.T, n int, timeout time.Duration, serve func(ctx context.Context, at time.Duration, in int) error, b []backend.Option, opts ...asyncop.Option,
) (done int, failed []error, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun := time.Now()
		call := asyncop.Blocking(func(ctx context.Context, in int) (int, error) { return in, serve(ctx, time.Since(begun), in) })
		opts = append(opts, asyncop.WithBackend(backend.New("service", append(b, backend.WithLogger(silent))...)), asyncop.WithLogger(silent),
			asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, f.Err)
				return nil
			}))
		op := asyncop.UnorderedWaitWithRetry(call, timeout, 100, strategies.ReasonAware(httpretry.Classifier[int](), nil).Idempotent(), opts...)
		for _, err := range op.Results(upTo(n)) {
			require.NoError(t, err)
			done++
		}
		took = time.Since(begun)
	})
	return done, failed, took
}

func answerAtOnce(context.Context, time.Duration, int) error { return nil }

// Law A3: elements that wait for the rate run out of time before their first call. With
// the option they do not.
func TestWithTimeoutFromFirstAttempt_Rate(t *testing.T) {
	rate := []backend.Option{backend.Rate(10, time.Second)}
	done, failed, _ := lateRun(t, 100, 2*time.Second, answerAtOnce, rate)
	require.Less(t, done, 30)
	require.NotEmpty(t, failed)

	done, failed, took := lateRun(t, 100, 2*time.Second, answerAtOnce, rate, asyncop.WithTimeoutFromFirstAttempt())
	require.Equal(t, 100, done)
	require.Empty(t, failed)
	require.InDelta(t, 10, took.Seconds(), 0.2)
}

// In an outage of 37 s the elements of a stream wait, even if their calls met its
// beginning. An element whose call is refused each time ends nevertheless: its time
// begins anew at most three times.
func TestWithTimeoutFromFirstAttempt_Outage(t *testing.T) {
	serve := func(_ context.Context, at time.Duration, _ int) error {
		time.Sleep(100 * time.Millisecond)
		if at > 5*time.Second && at < 42*time.Second {
			return &httpretry.StatusError{StatusCode: 503}
		}
		return nil
	}
	rate := []backend.Option{backend.Rate(20, time.Second)}
	done, failed, _ := lateRun(t, 300, 10*time.Second, serve, rate)
	require.Less(t, done, 300)
	require.NotEmpty(t, failed)

	done, failed, took := lateRun(t, 300, 10*time.Second, serve, rate, asyncop.WithTimeoutFromFirstAttempt())
	require.Equal(t, 300, done)
	require.Empty(t, failed)
	require.Less(t, took, 70*time.Second)

	always := func(_ context.Context, _ time.Duration, in int) error {
		time.Sleep(100 * time.Millisecond)
		return &httpretry.StatusError{StatusCode: 503}
	}
	done, failed, took = lateRun(t, 10, 10*time.Second, always, nil, asyncop.WithTimeoutFromFirstAttempt())
	require.Zero(t, done)
	require.Len(t, failed, 10)
	require.Less(t, took, 10*time.Minute)
}

// The timeout bounds all attempts of an element from the start of the first one on.
func TestWithTimeoutFromFirstAttempt_IsATotal(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(ctx context.Context, at time.Duration, in int) error
		opts  []asyncop.Option
		took  time.Duration
	}{
		"a call that hangs": {func(ctx context.Context, _ time.Duration, _ int) error { <-ctx.Done(); return ctx.Err() }, nil, 3 * time.Second},
		"throttled": {func(context.Context, time.Duration, int) error {
			return predicates.WithPushback(errThrottled, 200*time.Millisecond)
		}, nil, 3 * time.Second},
		"a timeout of its own": {
			func(ctx context.Context, _ time.Duration, _ int) error { <-ctx.Done(); return ctx.Err() },
			[]asyncop.Option{asyncop.WithTimeoutFor(func(int) time.Duration { return 5 * time.Second })},
			5 * time.Second,
		},
		"a deadline in the past": {
			func(context.Context, time.Duration, int) error { return errors.New("called") },
			[]asyncop.Option{asyncop.WithTimeoutFor(func(int) time.Duration { return -1 })},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := append(c.opts, asyncop.WithTimeoutFromFirstAttempt())
			done, failed, took := lateRun(t, 1, 3*time.Second, c.serve, nil, opts...)
			require.Zero(t, done)
			require.Len(t, failed, 1)
			require.ErrorIs(t, failed[0], context.DeadlineExceeded)
			require.Equal(t, c.took, took)
		})
	}
}

// An element that will wait for the end of an outage has no retry that is too late, so
// WithEarlyTimeout does not end it, and observers are notified of its retry.
func TestWithTimeoutFromFirstAttempt_EarlyTimeoutInAnOutage(t *testing.T) {
	serve := func(_ context.Context, at time.Duration, _ int) error {
		switch down := error(&httpretry.StatusError{StatusCode: 503}); {
		case at == 0: // these calls take the backend down
			return down
		case at < 20*time.Second: // a probe: the demanded delay is longer than the timeout
			return predicates.WithPushback(down, 5*time.Second)
		}
		return nil
	}
	retries := &retryWatch{ended: map[int]bool{}}
	done, failed, _ := lateRun(t, 10, 3*time.Second, serve, nil,
		asyncop.WithTimeoutFromFirstAttempt(), asyncop.WithEarlyTimeout(), asyncop.WithObserver(retries))
	require.Empty(t, failed)
	require.Equal(t, 10, done)
	require.Zero(t, retries.unannounced, "attempts after an attempt that had ended without a retry")
}

// retryWatch counts attempts that follow an attempt which was reported as the last one.
type retryWatch struct {
	ended       map[int]bool // by element: its last attempt has no retry
	unannounced int
}

type elementKey struct{}

func (w *retryWatch) Accepted(ctx context.Context, element any, _ bool) context.Context {
	return context.WithValue(ctx, elementKey{}, element)
}

func (w *retryWatch) AttemptStarted(ctx context.Context, _ int) context.Context {
	if w.ended[ctx.Value(elementKey{}).(int)] {
		w.unannounced++
	}
	return ctx
}

func (w *retryWatch) AttemptEnded(ctx context.Context, outcome observe.Outcome) {
	w.ended[ctx.Value(elementKey{}).(int)] = !outcome.Retry
}

func (w *retryWatch) Ended(context.Context, observe.Ending) {}
