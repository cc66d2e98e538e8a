package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

var errUnavailable = predicates.WithReason(errors.New("unavailable"), httpretry.ServiceUnavailable)

// service is a service with an outage.
type service struct {
	running, most, calls atomic.Int64
	down                 func() bool
	poison               func(in int) bool
}

func (s *service) call(ctx context.Context, in int) (int, error) {
	s.calls.Add(1)
	now := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if s.down != nil && s.down() || s.poison != nil && s.poison(in) {
		return 0, errUnavailable
	}
	return in, nil
}

func retried(n int) *strategies.Policy[int] {
	return strategies.PolicyOf(strategies.FixedDelay[int](n, 100*time.Millisecond).RetryIfException(predicates.HasException))
}

// Operators that share a backend stay within its limit together (law B1).
func TestOperatorsShareABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s service
		b := backend.New("shared", backend.Limit(5))
		results := make(chan int)
		for range 3 {
			op := asyncop.UnorderedWait(asyncop.Blocking(s.call), time.Minute, 50, asyncop.WithBackend(b))
			go func() {
				n := 0
				for _, err := range op.Results(slices.Values(make([]int, 100))) {
					if err == nil {
						n++
					}
				}
				results <- n
			}()
		}
		for range 3 {
			require.Equal(t, 100, <-results)
		}
		require.EqualValues(t, 5, s.most.Load())
		require.Zero(t, b.Stats().InUse)
		require.Zero(t, b.Stats().Waiting)
		require.EqualValues(t, 300, b.Stats().Started)
	})
}

// An outage uses up no retry: one that is longer than all back-offs together loses nothing, and hears few calls.
func TestAnOutageUsesUpNoRetries(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		t.Run(fmt.Sprint(blocking), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				s := service{down: func() bool { d := time.Since(start); return d > 5*time.Second && d < 10*time.Minute }}
				fn := asyncop.Blocking(s.call)
				if !blocking {
					fn = asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
						go func() {
							if out, err := s.call(ctx, in); err != nil {
								result.CompleteExceptionally(err)
							} else {
								result.Complete(out)
							}
						}()
						return nil
					})
				}
				b := backend.New("outage", backend.Limit(4), backend.Rate(20, time.Second), backend.WithLogger(slog.New(slog.DiscardHandler)))
				op := asyncop.OrderedWaitWithRetry(fn, time.Hour, 100, retried(1), asyncop.WithBackend(b))
				n := 0
				for _, err := range op.Results(slices.Values(make([]int, 1000))) {
					require.NoError(t, err)
					n++
				}
				require.Equal(t, 1000, n)
				require.Less(t, s.calls.Load(), int64(1100))
				require.Less(t, time.Since(start), 10*time.Minute+90*time.Second)
			})
		})
	}
}

// An element that always answers 503 uses up its retries when the others do not.
func TestPoisonFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service{poison: func(in int) bool { return in%100 == 7 }}
		b := backend.New("poison", backend.Limit(4))
		var failed []int
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(s.call), time.Hour, 100, retried(3), asyncop.WithBackend(b),
			asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
				failed = append(failed, f.Element)
				return nil
			}))
		in := make([]int, 500)
		for i := range in {
			in[i] = i
		}
		n := 0
		for _, err := range op.Results(slices.Values(in)) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 495, n)
		slices.Sort(failed)
		require.Equal(t, []int{7, 107, 207, 307, 407}, failed)
	})
}

// A deadline that passes while the backend is closed has an error of its own. Other timeouts do not.
func TestErrBackendClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		b.Close("migration")
		op := asyncop.OrderedWait(asyncop.Blocking(new(service).call), time.Second, 10, asyncop.WithBackend(b))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.ErrorIs(t, err, asyncop.ErrBackendClosed)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "timed out after 1s and 0 attempts: it waited: backend payments is held: migration")
		}
		op = asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}), time.Second, 10, asyncop.WithBackend(backend.New("slow", backend.Limit(1))))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.NotErrorIs(t, err, asyncop.ErrBackendClosed)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// A message whose time runs out while the backend is closed is given back until the opening. The failure sink does not get it.
func TestMessagesAreGivenBackUntilTheOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		b.Close("migration")
		op := asyncop.OrderedWait(asyncop.Blocking(new(service).call), time.Second, 10, asyncop.WithBackend(b),
			asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error {
				t.Error("the failure sink got it")
				return nil
			}))
		var verdict delivery.Verdict
		input := func(yield func(delivery.Message[int], error) bool) {
			yield(delivery.New(1, &delivery.Meta{ID: "a"}, func(v delivery.Verdict) { verdict = v }), nil)
		}
		for _, err := range op.Messages(input) {
			require.NoError(t, err)
		}
		require.Equal(t, delivery.Nacked, verdict.Kind)
		require.Equal(t, 10*time.Second, verdict.Delay)
		require.ErrorIs(t, verdict.Err, asyncop.ErrBackendClosed)
		require.EqualValues(t, 1, op.Stats().Abandoned)
		require.Zero(t, op.Stats().InFlight)
	})
}

// A tenant that must wait lets the others pass, and costs what its elements cost.
func TestTenantsAndCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type order struct {
			shop   string
			tokens float64
		}
		start := time.Now()
		done := map[string]time.Duration{}
		b := backend.New("payments", backend.TenantRate(10, time.Second))
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, o order) (string, error) { return o.shop, nil }),
			time.Hour, 100, asyncop.WithBackend(b,
				asyncop.Cost(func(o order) float64 { return o.tokens }), asyncop.Tenant(func(o order) string { return o.shop })))
		in := slices.Repeat([]order{{"greedy", 2}}, 51)
		in = append(in, order{"modest", 1})
		for shop, err := range op.Results(slices.Values(in)) {
			require.NoError(t, err)
			done[shop] = time.Since(start)
		}
		require.Less(t, done["modest"], 10*time.Millisecond)
		require.InDelta(t, 10, done["greedy"].Seconds(), 0.3)
	})
}

// A call may run an operator with the same backend on its own permit.
func TestBackendLendsItsPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("nested", backend.Limit(1))
		outer := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
			inner := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in int) (int, error) { return 2 * in, nil }),
				time.Second, 5, asyncop.WithBackend(b), asyncop.WithContext(ctx))
			sum := 0
			for out, err := range inner.Results(slices.Values([]int{in, in, in})) {
				if err != nil {
					return 0, err
				}
				sum += out
			}
			return sum, nil
		}), time.Minute, 5, asyncop.WithBackend(b))
		for out, err := range outer.Results(slices.Values([]int{1, 1})) {
			require.NoError(t, err)
			require.Equal(t, 6, out)
		}
		require.Zero(t, b.Stats().InUse)
	})
}

// Law A6: what breaks in the functions of a backend fails the element, and no permit is lost.
func TestBackendFunctionsThatBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("broken", backend.Limit(1))
		op := asyncop.OrderedWait(asyncop.Blocking(new(service).call), time.Minute, 5, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithBackend(b, asyncop.Cost(func(in int) float64 {
				if in == 2 {
					panic("boom")
				}
				return 1
			})))
		var got []int
		for out, err := range op.Results(slices.Values([]int{1, 2, 3})) {
			require.NoError(t, err)
			got = append(got, out)
		}
		require.Equal(t, []int{1, 3}, got)
		require.Zero(t, b.Stats().InUse)
	})
}

// A batch has one permit, and each member says how it went.
func TestBatchesAtABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("batches", backend.Limit(2))
		var running, most atomic.Int64
		fn := asyncop.Batched(func(_ context.Context, ins []int) ([]asyncop.Result[int], error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Millisecond)
			out := make([]asyncop.Result[int], len(ins))
			for i, in := range ins {
				out[i].Value = in
			}
			return out, nil
		}, 10, 0)
		op := asyncop.UnorderedWait(fn, time.Minute, 100, asyncop.WithBackend(b))
		n := 0
		for _, err := range op.Results(slices.Values(make([]int, 200))) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 200, n)
		require.EqualValues(t, 2, most.Load())
		require.Zero(t, b.Stats().InUse)
	})
}

func TestBackendOptionsThatMakeNoSense(t *testing.T) {
	fn := asyncop.Blocking(new(service).call)
	b := backend.New("a")
	for text, f := range map[string]func(){
		"asyncop: WithBackend: nil backend": func() { asyncop.WithBackend(nil) },
		"asyncop: Cost: nil function":       func() { asyncop.Cost[int](nil) },
		"asyncop: Tenant: nil function":     func() { asyncop.Tenant[int](nil) },
		"asyncop: OrderedWait: WithBackend with WithPermits or WithPace": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.WithBackend(b), asyncop.WithPermits(asyncop.NewPermits(1)))
		},
		"asyncop: OrderedWait: Cost: func(string) float64 does not take int": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.WithBackend(b, asyncop.Cost(func(string) float64 { return 1 })))
		},
		"asyncop: OrderedWait: Tenant: func(string) string does not take int": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.WithBackend(b, asyncop.Tenant(func(string) string { return "" })))
		},
	} {
		require.PanicsWithValue(t, text, f)
	}
}
