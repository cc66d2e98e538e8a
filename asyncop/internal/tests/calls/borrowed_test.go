package calls_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// rows is an unbounded cache.
type rows struct{ of sync.Map }

func (r *rows) Get(key int) (e lookup.Entry[int], ok bool) {
	v, ok := r.of.Load(key)
	if ok {
		e = v.(lookup.Entry[int])
	}
	return e, ok
}
func (r *rows) Put(key int, e lookup.Entry[int]) { r.of.Store(key, e) }
func (r *rows) Delete(key int)                   { r.of.Delete(key) }

// Law B4: only calls are reported to a backend. A call that several elements have waited
// for is reported once, even if they have given up, and a cache hit is not reported.
func TestWithBackend_OnlyCallsAreReported(t *testing.T) {
	quiet := backend.WithLogger(slog.New(slog.DiscardHandler))
	for name, call := range map[string]func(ctx context.Context) error{
		"lost":     func(context.Context) error { return errUnavailable },
		"too slow": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				b := backend.New("users", quiet)
				users := lookup.New(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
					calls.Add(1)
					time.Sleep(time.Millisecond)
					return 0, call(ctx)
				}), nil)
				op := asyncop.OrderedWaitWithRetry(lookup.Join(users, func(int) int { return 7 }, func(_, user int) int { return user }), time.Minute, 10,
					retried(0), asyncop.WithBackend(b), asyncop.WithAttemptTimeout(time.Second), asyncop.WithDropOnFailure())
				for _, err := range op.Results(slices.Values([]int{1, 2, 3, 4, 5, 6})) {
					require.NoError(t, err)
				}
				require.EqualValues(t, 6, op.Stats().Dropped)
				require.EqualValues(t, 1, calls.Load())
				require.Zero(t, b.Stats().Trips, b.Stats().Reason)
				require.EqualValues(t, 1, b.Stats().Lost)
			})
		})
	}
	t.Run("hit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, cache := backend.New("users", quiet), &rows{}
			cache.Put(7, lookup.Entry[int]{Results: []int{70}})
			users := lookup.New(asyncop.Blocking(func(context.Context, int) (int, error) { return 0, errUnavailable }), cache)
			b.Hold("migration")
			b.Resume()
			require.Equal(t, backend.Probing, b.Stats().State)
			op := asyncop.OrderedWait(users, time.Minute, 10, asyncop.WithBackend(b))
			for out, err := range op.Results(slices.Values([]int{7})) {
				require.NoError(t, err)
				require.Equal(t, 70, out)
			}
			require.Equal(t, backend.Probing, b.Stats().State, "nothing was called")
		})
	})
}

// Law B4: a batch of retries whose Before failed makes no call, and therefore does not
// answer a probe.
func TestWithBackend_BatchWhoseBeforeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("users", backend.WithLogger(slog.New(slog.DiscardHandler)))
		var calls atomic.Int64
		fn := asyncop.Batched(func(context.Context, []int) ([]asyncop.Result[int], error) {
			calls.Add(1)
			return nil, errUnavailable
		}, 10, time.Millisecond)
		cannot := errors.New("cannot prepare")
		policy := strategies.ReasonAware(
			predicates.ByException[int](predicates.ErrorIs(errUnavailable), httpretry.ServiceUnavailable),
			strategies.ReasonStrategyFunc[int](func(context.Context, *predicates.Attempt[int]) (strategies.Action, error) {
				b.Hold("migration")
				b.Resume() // the retry is the probe
				return strategies.Action{Retry: true, Delay: time.Second, Before: func(context.Context) error { return cannot }}, nil
			}))
		op := asyncop.UnorderedWaitWithRetry(fn, time.Minute, 10, policy, asyncop.WithBackend(b), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, op.Stats().Dropped)
		require.EqualValues(t, 1, calls.Load())
		require.Equal(t, backend.Probing, b.Stats().State)
	})
}

// Elements that wait for the same call do not each use up retry budget, because one
// repetition serves all of them.
func TestRetryBudget_SharedCallCostsOneRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		b := backend.New("users", backend.RetryBudget(0), backend.WithLogger(slog.New(slog.DiscardHandler)))
		before := b.Stats().RetriesLeft
		users := lookup.New(asyncop.Blocking(func(context.Context, int) (int, error) {
			time.Sleep(time.Millisecond)
			if calls.Add(1) == 1 {
				return 0, errUnavailable
			}
			return 70, nil
		}), nil)
		op := asyncop.OrderedWaitWithRetry(users, time.Minute, 500, retried(1), asyncop.WithBackend(b))
		n := 0
		for out, err := range op.Results(slices.Values(slices.Repeat([]int{7}, 300))) {
			require.NoError(t, err)
			require.Equal(t, 70, out)
			n++
		}
		require.Equal(t, 300, n)
		require.EqualValues(t, 2, calls.Load())
		require.GreaterOrEqual(t, b.Stats().RetriesLeft, before-1)
		require.Zero(t, b.Stats().RetriesRefused)
	})
}

// Law O1: a message that is released because its backend is down does not hand over an
// earlier failure of its key a second time.
func TestBackend_MessageReleasedBehindAFailureOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var offers []time.Duration
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		op := asyncop.KeyOrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) { return 0, errUnavailable }), func(int) int { return 0 },
			time.Second, 10, nil, asyncop.WithBackend(b), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error {
				if offers = append(offers, time.Since(start)); len(offers) < 5 {
					return errUnavailable
				}
				return nil
			}))
		var settled message.Settlement
		input := func(yield func(message.Message[int], error) bool) {
			yield(message.New(1, &message.Meta{ID: "a"}, func(message.Settlement) {}), nil)
			yield(message.New(2, &message.Meta{ID: "b"}, func(v message.Settlement) { settled = v }), nil)
		}
		time.AfterFunc(900*time.Millisecond, func() { b.Hold("migration") })
		for _, err := range op.Messages(input) {
			require.NoError(t, err)
		}
		require.Equal(t, message.Released, settled.Kind)
		require.ErrorIs(t, settled.Err, asyncop.ErrBackendDown)
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}, offers)
		require.EqualValues(t, 1, op.Stats().HandedOver)
	})
}

// breaking is an observer whose contexts break when they are asked for an unknown value.
type breaking struct{}

func (breaking) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	return breakingValues{ctx}
}
func (breaking) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (breaking) AttemptEnded(context.Context, observe.Outcome)             {}
func (breaking) Ended(context.Context, observe.Ending)                     {}

type breakingValues struct{ context.Context }

func (breakingValues) Value(any) any { panic("broken") }

// Law A6: a timeout with a backend reads the context of an observer, which may break.
func TestWithObserver_BreaksAtATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return nil }), time.Second, 10,
			retried(1), asyncop.WithBackend(backend.New("x")), asyncop.WithObserver(breaking{}), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, op.Stats().Timeouts)
	})
}

// Law B4: a call that begins late and is cut off by the end of its element's time is not
// evidence against a service that answers other calls meanwhile.
func TestWithBackend_CallThatIsCutOffIsNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		first, second time.Duration // durations of calls that begin immediately; the third call begins after the first has ended, and hangs
		lost          int64
	}{
		"late, and others are answered": {6 * time.Second, 8 * time.Second, 0},
		"late, and no other is":         {6 * time.Second, 6 * time.Second, 1},
		"early":                         {3 * time.Second, 8 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := backend.New("x", backend.Limit(2), backend.WithLogger(slog.New(slog.DiscardHandler)))
				op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
					select {
					case <-time.After([]time.Duration{c.first, c.second, time.Hour}[i]):
						return i, nil
					case <-ctx.Done():
						return 0, context.Cause(ctx)
					}
				}), 10*time.Second, 3, asyncop.WithBackend(b), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				for _, err := range op.Results(slices.Values([]int{0, 1, 2})) {
					require.NoError(t, err)
				}
				require.EqualValues(t, 1, op.Stats().Dropped)
				require.Equal(t, c.lost, b.Stats().Lost)
			})
		})
	}
}

// A spent budget does not keep elements from the answers of the cache, even if they are
// behind an element that needs a call, and are more than a step starts.
func TestBudget_CacheAnswersManyAfterItIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := lookup.New(asyncop.Blocking(func(context.Context, int) (int, error) {
			calls++ // one at a time
			time.Sleep(time.Second)
			return 0, nil
		}), &rows{})
		op := asyncop.UnorderedWait(f, time.Hour, 300,
			asyncop.WithBackend(backend.New("b"), asyncop.Budget(2)), asyncop.WithMaxConcurrentCalls(1))
		in := append([]int{1, 2, 3}, slices.Repeat([]int{2}, 200)...) // each 2 is a miss when it is accepted
		got := 0
		for _, err := range op.Results(slices.Values(in)) {
			if err != nil {
				require.ErrorIs(t, err, asyncop.ErrBudgetSpent)
				break
			}
			got++
		}
		require.Equal(t, len(in)-1, got, "all but 3")
		require.Equal(t, 2, calls)
	})
}

// The run ends because of its budget only while an element needs a call. If the element
// that needed one has timed out, later elements get answers of the cache.
func TestBudget_NoElementNeedsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := lookup.New(asyncop.Blocking(func(_ context.Context, n int) (int, error) {
			if n == 2 {
				time.Sleep(9 * time.Second)
			}
			return n, nil
		}), &rows{})
		op := asyncop.UnorderedWait(f, time.Minute, 10, asyncop.WithBackend(backend.New("b"), asyncop.Budget(1)), asyncop.WithMaxConcurrentCalls(2),
			asyncop.WithTimeoutFor(func(n int) time.Duration {
				if n == 3 {
					return 5 * time.Second
				}
				return time.Minute
			}), asyncop.WithDropOnFailure())
		var got []int
		for v, err := range op.Results(func(yield func(int) bool) {
			_ = yield(2) && yield(1) && yield(3) // 1 spends the budget, and 3 is refused
			time.Sleep(15 * time.Second)         // 3 has timed out, and then 2 has ended
			_ = yield(1)
		}) {
			require.NoError(t, err)
			got = append(got, v)
		}
		require.Equal(t, []int{1, 2, 1}, got)
		require.EqualValues(t, 1, op.Stats().Dropped)
	})
}
