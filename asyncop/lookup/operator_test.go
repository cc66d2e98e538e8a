package lookup_test

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
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var silent = asyncop.WithLogger(slog.New(slog.DiscardHandler))

// forEachKind runs the test with a function that uses callbacks and with a blocking
// function.
func forEachKind(
	t *testing.T, test func(t *testing.T, make func(call func(ctx context.Context, key string) (int, error)) asyncop.AsyncFunction[string, int]),
) {
	t.Helper()
	t.Run("Blocking", func(t *testing.T) {
		test(t, asyncop.Blocking[string, int])
	})
	t.Run("callbacks", func(t *testing.T) {
		test(t, func(call func(ctx context.Context, key string) (int, error)) asyncop.AsyncFunction[string, int] {
			return asyncop.Func(func(ctx context.Context, key string, result asyncop.ResultFuture[int]) error {
				go func() {
					n, err := call(ctx, key)
					switch {
					case errors.Is(err, asyncop.ErrNoResult):
						result.Complete()
					case err != nil:
						result.CompleteExceptionally(err)
					default:
						result.Complete(n)
					}
				}()
				return nil
			})
		})
	})
}

func repeat(key string, n int) []string { return slices.Repeat([]string{key}, n) }

func TestLookupsOfAnOperator(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(func(context.Context, string) (int, error)) asyncop.AsyncFunction[string, int]) {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			f := lookup.New(kind(func(ctx context.Context, key string) (int, error) {
				calls.Add(1)
				if asyncop.AttemptFromContext(ctx) != 1 {
					t.Error("the load has no attempt")
				}
				time.Sleep(time.Second)
				return len(key), nil
			}), newMemory[string, int]())
			op := asyncop.OrderedWait(f, time.Minute, 10)
			start := time.Now()
			got := 0
			for n, err := range op.Results(slices.Values(append(repeat("abc", 100), "d"))) {
				require.NoError(t, err)
				if got++; got <= 100 {
					require.Equal(t, 3, n)
				}
			}
			require.Equal(t, 101, got)
			require.EqualValues(t, 2, calls.Load())
			require.LessOrEqual(t, time.Since(start), 2*time.Second)
			s := f.Stats()
			require.Equal(t, lookup.Stats{Hits: s.Hits, Misses: 11, Shared: 9, Loads: 2}, s)
			require.EqualValues(t, 90, s.Hits)
		})
	})
}

// Elements that waited for a failed load share its retry.
func TestWaitersRetryAndShareAgain(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(func(context.Context, string) (int, error)) asyncop.AsyncFunction[string, int]) {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			f := lookup.New(kind(func(context.Context, string) (int, error) {
				time.Sleep(time.Second)
				if calls.Add(1) <= 2 {
					return 0, errBackend
				}
				return 1, nil
			}), nil)
			op := asyncop.OrderedWaitWithRetry(f, time.Minute, 10,
				strategies.FixedDelay[int](3, time.Second).RetryIfException(predicates.HasException))
			got := 0
			for n, err := range op.Results(slices.Values(repeat("a", 10))) {
				require.NoError(t, err)
				require.Equal(t, 1, n)
				got++
			}
			require.Equal(t, 10, got)
			require.EqualValues(t, 3, calls.Load())
			require.EqualValues(t, 30, op.Stats().Attempts)
			require.Equal(t, lookup.Stats{Misses: 30, Shared: 27, Loads: 3, LoadErrors: 2}, f.Stats())
		})
	})
}

// A retry is not answered by a negative entry or a kept error, because it would be
// useless then.
func TestRetriesGoPastNegativeEntries(t *testing.T) {
	for name, first := range map[string]error{"no result": asyncop.ErrNoResult, "error": errBackend} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
					if calls++; calls == 1 {
						return 0, first
					}
					return 1, nil
				}), newMemory[string, int](), lookup.WithErrorTTL(time.Hour, predicates.HasException))
				op := asyncop.OrderedWaitWithRetry(f, time.Minute, 1, strategies.FixedDelay[int](3, time.Second).
					RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException))
				got := 0
				for n, err := range op.Results(slices.Values(repeat("a", 3))) {
					require.NoError(t, err)
					require.Equal(t, 1, n)
					got++
				}
				require.Equal(t, 3, got)
				require.Equal(t, 2, calls)
				require.EqualValues(t, 2, f.Stats().Hits)
			})
		})
	}
}

// An element that times out fails alone, whether or not it has begun the load.
func TestTimeoutsOfSharedLoads(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind func(func(context.Context, string) (int, error)) asyncop.AsyncFunction[string, int]) {
		for name, timeouts := range map[string][2]time.Duration{
			"the one who began it": {time.Second, time.Minute},
			"one who joined":       {time.Minute, time.Second},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int64
					f := lookup.New(kind(func(ctx context.Context, _ string) (int, error) {
						calls.Add(1)
						select {
						case <-time.After(10 * time.Second):
							return 1, nil
						case <-ctx.Done():
							return 0, ctx.Err()
						}
					}), nil)
					var ends [2]error
					var wg sync.WaitGroup
					for i, timeout := range timeouts {
						op := asyncop.OrderedWait(f, timeout, 1, silent)
						wg.Go(func() {
							for _, err := range op.Results(slices.Values([]string{"a"})) {
								ends[i] = err
							}
						})
						synctest.Wait()
					}
					wg.Wait()
					require.EqualValues(t, 1, calls.Load())
					for i, timeout := range timeouts {
						if timeout == time.Minute {
							require.NoError(t, ends[i])
						} else {
							var e *asyncop.TimeoutError
							require.ErrorAs(t, ends[i], &e)
						}
					}
				})
			})
		}
	})
}

// The report of a load counts for all lookups that waited for it, because their retry
// would repeat its request.
func TestStageOfASharedFailure(t *testing.T) {
	inDoubt := predicates.NewReason("IN_DOUBT", false, false)
	notSent := predicates.NewReason("NOT_SENT", true, false)
	for name, test := range map[string]struct {
		report func(ctx context.Context)
		stage  predicates.Stage
		doubt  bool // in doubt by a client's report
	}{
		"nothing":      {func(context.Context) {}, predicates.NetworkTime, false}, // the safe assumption
		"not sent":     {func(ctx context.Context) { predicates.ReportStage(ctx, predicates.ClientDispatch) }, predicates.ClientDispatch, false},
		"sent":         {func(ctx context.Context) { predicates.ReportStage(ctx, predicates.NetworkTime) }, predicates.NetworkTime, false},
		"by clients":   {func(ctx context.Context) { predicates.ReportSent(ctx); predicates.ReportSent(ctx).Refused() }, predicates.NetworkTime, true},
		"deduplicated": {func(ctx context.Context) { predicates.ReportSent(predicates.WithDeduplicated(ctx)) }, predicates.NetworkTime, true},
		"refused": {func(ctx context.Context) {
			predicates.ReportStage(ctx, predicates.ClientDispatch)
			predicates.ReportSent(ctx).Refused()
		}, predicates.ClientDispatch, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				f := lookup.New(asyncop.Blocking(func(ctx context.Context, _ string) (int, error) {
					calls.Add(1)
					test.report(ctx)
					time.Sleep(time.Second)
					return 0, errBackend
				}), nil)
				var mu sync.Mutex
				var failures []asyncop.Failure[string]
				op := asyncop.OrderedWaitWithRetry(f, time.Minute, 3, strategies.ReasonAware(
					func(a *predicates.Attempt[int]) (predicates.Reason, bool) {
						stage := a.Stage
						if stage == predicates.Unreported {
							stage = predicates.NetworkTime
						}
						if stage != test.stage || a.InDoubt != test.doubt {
							t.Errorf("stage %v, in doubt %v", a.Stage, a.InDoubt)
						}
						if stage == predicates.ClientDispatch {
							return notSent, true
						}
						return inDoubt, true
					}, strategies.BestEffort[int]().WithMaxRetries(1)), silent,
					asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
						mu.Lock()
						defer mu.Unlock()
						failures = append(failures, f)
						return nil
					}))
				for range op.Results(slices.Values(repeat("a", 3))) {
					t.Error("a result")
				}
				require.Len(t, failures, 3)
				for _, f := range failures {
					require.Equal(t, test.stage != predicates.ClientDispatch, f.InDoubt)
				}
				if test.stage == predicates.ClientDispatch {
					require.EqualValues(t, 2, calls.Load(), "what was not sent is tried again")
				} else {
					require.EqualValues(t, 1, calls.Load())
				}
			})
		})
	}
}

// An error from the cache belongs to a lookup that has sent nothing.
func TestStageOfAKeptError(t *testing.T) {
	f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) { return 0, errBackend }), newMemory[string, int](), lookup.WithErrorTTL(time.Hour, predicates.HasException))
	var stages []predicates.Stage
	op := asyncop.OrderedWaitWithRetry(f, time.Minute, 1, strategies.ReasonAware(
		func(a *predicates.Attempt[int]) (predicates.Reason, bool) {
			stages = append(stages, a.Stage)
			return predicates.Reason{}, true
		}, nil), asyncop.WithDropOnFailure(), silent)
	for range op.Results(slices.Values(repeat("a", 2))) {
		t.Error("a result")
	}
	require.Equal(t, []predicates.Stage{predicates.Unreported, predicates.ClientDispatch}, stages)
}

// rich has all optional interfaces.
type rich struct {
	asyncop.AsyncFunction[string, int]
	opened, closed bool
}

func (r *rich) Open(context.Context) error { r.opened = true; return nil }
func (r *rich) Close() error               { r.closed = true; return nil }

func (r *rich) Timeout(context.Context, string) ([]int, error) { return []int{-1}, nil }

func TestOptionalInterfacesStayReachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rich{AsyncFunction: new(backend)} // never answers
		op := asyncop.OrderedWait(lookup.New(r, nil), time.Second, 3)
		var got []int
		for n, err := range op.Results(slices.Values(repeat("a", 3))) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, []int{-1, -1, -1}, got)
		require.True(t, r.opened)
		require.True(t, r.closed)
	})
}

// An operator that is cancelled ends its load only if no other element waits for the
// load.
func TestCancelledOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, cancelled atomic.Int64
		f := lookup.New(asyncop.Blocking(func(ctx context.Context, key string) (int, error) {
			calls.Add(1)
			select {
			case <-time.After(10 * time.Second):
				return 1, nil
			case <-ctx.Done():
				cancelled.Add(1)
				return 0, ctx.Err()
			}
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		run := func(want string, opts ...asyncop.Option) {
			op := asyncop.UnorderedWait(f, time.Minute, 10, append(opts, silent)...)
			wg.Go(func() {
				var end string
				for _, err := range op.Results(slices.Values([]string{"a", "a"})) {
					if end = "result"; err != nil {
						end = "error"
						break
					}
				}
				if end != want {
					t.Errorf("ended with %q, want %q", end, want)
				}
			})
			synctest.Wait()
		}
		run("error", asyncop.WithContext(ctx))
		run("result")
		cancel()
		wg.Wait()
		require.EqualValues(t, 1, calls.Load())
		require.Zero(t, cancelled.Load())

		ctx, cancel = context.WithCancel(t.Context())
		run("error", asyncop.WithContext(ctx))
		cancel()
		wg.Wait()
		synctest.Wait()
		require.EqualValues(t, 1, cancelled.Load())
	})
}
