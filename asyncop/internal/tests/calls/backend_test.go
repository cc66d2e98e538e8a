package calls_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/message"
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
		synctest.Wait()
		require.Zero(t, b.Stats().InUse)
		require.Zero(t, b.Stats().Waiting)
		require.EqualValues(t, 300, b.Stats().Started)
	})
}

// An outage uses up no retries: one that is longer than all back-offs together loses no
// element, and the service gets few calls.
func TestWithBackend_OutageUsesUpNoRetries(t *testing.T) {
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

// An element that is always answered with 503 uses up its retries if the other elements
// succeed.
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

// Attempts during an outage use up no retries, up to three times per element.
func TestWithBackend_OutageIsForgivenThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		b.Hold("migration")
		b.Resume() // each call is a probe
		s := &service{down: func() bool { return true }}
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(s.call), time.Hour, 10, retried(1), asyncop.WithBackend(b))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.ErrorIs(t, err, errUnavailable)
			require.NotErrorIs(t, err, asyncop.ErrBackendDown)
		}
		require.EqualValues(t, 1+1+3, s.calls.Load())
	})
}

// Law B3: among the elements that wait for a permit of the backend, elements that were
// called before go first, oldest first.
func TestRetriesGoFirstAtABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []int // one call at a time
		fn := asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			again := slices.Contains(calls, in)
			calls = append(calls, in)
			time.Sleep(100 * time.Millisecond)
			if in == 2 {
				time.Sleep(time.Second) // meanwhile the back-offs of 0 and 1 end
			}
			if in < 2 && !again {
				return 0, errors.New("no")
			}
			return in, nil
		})
		op := asyncop.UnorderedWaitWithRetry(fn, time.Hour, 10,
			strategies.PolicyOf(strategies.FixedDelay[int](1, 150*time.Millisecond).RetryIfException(predicates.HasException)),
			asyncop.WithBackend(backend.New("payments", backend.Limit(1))))
		for _, err := range op.Results(slices.Values([]int{0, 1, 2, 3, 4})) {
			require.NoError(t, err)
		}
		require.Equal(t, []int{0, 1, 2, 0, 1, 3, 4}, calls)
	})
}

// A deadline that passes while the backend is down has its own error. Other timeouts do
// not have it.
func TestErrBackendDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		b.Hold("migration")
		op := asyncop.OrderedWait(asyncop.Blocking(new(service).call), time.Second, 10, asyncop.WithBackend(b))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.ErrorIs(t, err, asyncop.ErrBackendDown)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "timed out after 1s and 0 attempts: it waited: backend payments is held: migration")
		}
		op = asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}), time.Second, 10, asyncop.WithBackend(backend.New("slow", backend.Limit(1))))
		for _, err := range op.Results(slices.Values([]int{1})) {
			require.NotErrorIs(t, err, asyncop.ErrBackendDown)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// A message whose time runs out while the backend is down is released until the backend
// is up. The failure sink does not get it.
func TestBackend_MessagesAreReleasedUntilItIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		b.Hold("migration")
		op := asyncop.OrderedWait(asyncop.Blocking(new(service).call), time.Second, 10, asyncop.WithBackend(b),
			asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error {
				t.Error("the failure sink got it")
				return nil
			}))
		var settled message.Settlement
		input := func(yield func(message.Message[int], error) bool) {
			yield(message.New(1, &message.Meta{ID: "a"}, func(v message.Settlement) { settled = v }), nil)
		}
		for _, err := range op.Messages(input) {
			require.NoError(t, err)
		}
		require.Equal(t, message.Released, settled.Kind)
		require.Equal(t, 10*time.Second, settled.Delay)
		require.ErrorIs(t, settled.Err, asyncop.ErrBackendDown)
		require.EqualValues(t, 1, op.Stats().Abandoned)
		require.Zero(t, op.Stats().InFlight)
	})
}

// A tenant that must wait does not block the others, and is charged the cost of its
// elements.
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

// A call may run an operator with the same backend on the permit of the call.
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
		synctest.Wait()
		require.Zero(t, b.Stats().InUse)
	})
}

// Law A6: a panic in a function of a backend fails the element, and no permit is lost.
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
		synctest.Wait()
		require.Zero(t, b.Stats().InUse)
	})
}

// A batch has one permit, and each member has its own outcome.
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
		synctest.Wait()
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
		"asyncop: OrderedWait: Cost, Tenant and Budget need WithBackend": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.Cost(func(int) float64 { return 1 }))
		},
		"asyncop: OrderedWait: Cost: func(string) float64 does not take int": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.WithBackend(b, asyncop.Cost(func(string) float64 { return 1 })))
		},
		"asyncop: OrderedWait: Tenant with Batched: a batch may be for several": func() {
			batched := asyncop.Batched(func(context.Context, []int) ([]asyncop.Result[int], error) { return nil, nil }, 1, 0)
			asyncop.OrderedWait(batched, 0, 1, asyncop.WithBackend(b, asyncop.Tenant(func(int) string { return "" })))
		},
		"asyncop: OrderedWait: Tenant: func(string) string does not take int": func() {
			asyncop.OrderedWait(fn, 0, 1, asyncop.WithBackend(b, asyncop.Tenant(func(string) string { return "" })))
		},
	} {
		require.PanicsWithValue(t, text, f)
	}
}

// The body of a loop over results may wait for another operator at the same backend,
// because no permit is kept for the loop meanwhile.
func TestResults_BodyWaitsForAnotherOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("shared", backend.Limit(1))
		var s service
		op := asyncop.UnorderedWait(asyncop.Blocking(s.call), time.Minute, 5, asyncop.WithBackend(b))
		n := 0
		for _, err := range op.ResultsOf(asyncop.FromSlice(make([]int, 10))) {
			require.NoError(t, err)
			other := asyncop.OrderedWait(asyncop.Blocking(s.call), time.Minute, 5, asyncop.WithBackend(b))
			for _, err := range other.Results(slices.Values(make([]int, 3))) {
				require.NoError(t, err)
			}
			n++
		}
		require.Equal(t, 10, n)
		synctest.Wait()
		require.Zero(t, b.Stats().InUse)
	})
}

// A cost that is not a valid number fails its element only. An enormous cost is paid
// within an hour.
func TestCostsThatMakeNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, batched := range []bool{false, true} {
			b := backend.New("payments", backend.Limit(1), backend.Rate(100, time.Second))
			fn := asyncop.Blocking(func(_ context.Context, in float64) (float64, error) { return in, nil })
			if batched {
				fn = asyncop.Batched(func(_ context.Context, ins []float64) ([]asyncop.Result[float64], error) {
					out := make([]asyncop.Result[float64], len(ins))
					for i := range out {
						out[i].Value = ins[i]
					}
					return out, nil
				}, 3, 0)
			}
			var failed []string
			op := asyncop.OrderedWait(fn, 2*time.Hour, 10,
				asyncop.WithBackend(b, asyncop.Cost(func(in float64) float64 { return in })),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[float64]) error {
					failed = append(failed, f.Err.Error())
					return nil
				}))
			var got []float64
			for out, err := range op.Results(slices.Values([]float64{1, math.NaN(), 2, math.Inf(1), -1, 0, math.Inf(-1), math.MaxFloat64, 3})) {
				require.NoError(t, err)
				got = append(got, out)
			}
			require.Equal(t, []float64{1, 2, 0, math.MaxFloat64, 3}, got)
			require.Len(t, failed, 4)
			require.Equal(t, "asyncop: Cost: want a finite number of 0 or more: NaN", failed[0])
			synctest.Wait()
			require.Zero(t, b.Stats().InUse)
			require.LessOrEqual(t, time.Since(start), 2*time.Hour+time.Minute)
		}
	})
}

// A batch costs as much as its members together and counts as one call, whatever the
// outcomes of its members.
func TestWithBackend_BatchIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := backend.New("batches", backend.Rate(100, time.Second), backend.RetryBudget(0), backend.WithLogger(slog.New(slog.DiscardHandler)))
		fn := asyncop.Batched(func(_ context.Context, ins []int) ([]asyncop.Result[int], error) {
			out := make([]asyncop.Result[int], len(ins))
			for i, in := range ins {
				if out[i].Value = in; in%10 != 0 {
					out[i].Err = errUnavailable
				}
			}
			return out, nil
		}, 10, 0)
		op := asyncop.UnorderedWait(fn, time.Hour, 100, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithBackend(b, asyncop.Cost(func(int) float64 { return 10 })))
		in := make([]int, 200)
		for i := range in {
			in[i] = i
		}
		n := 0
		for _, err := range op.Results(slices.Values(in)) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 20, n)
		require.EqualValues(t, 20, b.Stats().Started)
		require.Zero(t, b.Stats().Lost, "each call was answered")
		require.InDelta(t, 19, time.Since(start).Seconds(), 1)
	})
}

// thinker is a strategy that may block.
type thinker struct{}

func (thinker) Decide(context.Context, *predicates.Attempt[int]) (strategies.Action, error) {
	return strategies.RetryAfter(100 * time.Millisecond), nil
}

// A retry of an attempt that met the outage is not charged, even if the strategy runs off
// the loop.
func TestStrategiesBesideTheLoopRememberTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := service{down: func() bool { return time.Since(start) < 500*time.Millisecond }}
		b := backend.New("outage", backend.Limit(300), backend.RetryBudget(0), backend.WithLogger(slog.New(slog.DiscardHandler)))
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(s.call), time.Hour, 300,
			strategies.ReasonAware(predicates.Named[int](), strategies.ReasonStrategy[int](thinker{})).Idempotent(), asyncop.WithBackend(b))
		n := 0
		for _, err := range op.Results(slices.Values(make([]int, 300))) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 300, n)
		require.Zero(t, b.Stats().RetriesRefused)
	})
}

// Law W2: a message that was called is not released without being counted. Otherwise a
// message that breaks its service would be redelivered for ever.
func TestMessagesThatWereCalledInAnOutage(t *testing.T) {
	for _, runs := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
			fn := asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
				b.Hold("it has broken down")
				if runs {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				return 0, errUnavailable
			})
			var failed []error
			op := asyncop.OrderedWaitWithRetry(fn, time.Second, 10, retried(1), asyncop.WithBackend(b),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
					failed = append(failed, f.Err)
					return nil
				}))
			var settled message.Settlement
			for _, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
				yield(message.New(1, &message.Meta{ID: "a"}, func(v message.Settlement) { settled = v }), nil)
			}) {
				require.NoError(t, err)
			}
			require.Equal(t, message.HandedOver, settled.Kind)
			require.Len(t, failed, 1)
			require.ErrorIs(t, failed[0], asyncop.ErrBackendDown)
		})
	}
}

// A message whose tenant is paused is released until the end of the pause.
func TestMessagesOfAPausedTenantAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
		op := asyncop.UnorderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
			return 0, predicates.WithPushback(errUnavailable, 30*time.Second)
		}), time.Second, 1, asyncop.WithBackend(b, asyncop.Tenant(func(int) string { return "a" })), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		var settlements []message.Settlement
		for _, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
			for i := range 2 {
				yield(message.New(i, &message.Meta{ID: fmt.Sprint(i)}, func(v message.Settlement) { settlements = append(settlements, v) }), nil)
			}
		}) {
			require.NoError(t, err)
		}
		require.Len(t, settlements, 2)
		require.Equal(t, message.HandedOver, settlements[0].Kind, "dropped")
		require.Equal(t, message.Released, settlements[1].Kind)
		require.ErrorIs(t, settlements[1].Err, asyncop.ErrBackendDown)
		require.InDelta(t, 29, settlements[1].Delay.Seconds(), 0.1)
	})
}

// Law B2: a message whose time runs out while it waits for a call of a backend that is up
// was not visited either. A message that was called was visited, and so was a message
// that waits for something else.
func TestMessagesThatWaitForABackend(t *testing.T) {
	tenant := asyncop.Tenant(func(int) string { return "a" })
	busy := func(context.Context, int) (int, error) { time.Sleep(30 * time.Second); return 0, nil } // it ignores its context
	answers := func(_ context.Context, in int) (int, error) { return in, nil }
	fails := func(context.Context, int) (int, error) { return 0, errors.New("no") }
	for name, of := range map[string]struct {
		backend   backend.Option
		call      func(context.Context, int) (int, error)
		opts      []asyncop.Option
		givenBack bool
	}{
		"limit":                  {backend.Limit(1), busy, nil, true},
		"rate":                   {backend.Rate(1, time.Minute), answers, nil, true},
		"rate of a tenant":       {backend.TenantRate(1, time.Minute), answers, []asyncop.Option{tenant}, true},
		"called":                 {backend.Rate(60, 60*time.Hour), fails, nil, false},
		"limit of the operator":  {backend.Limit(5), busy, []asyncop.Option{asyncop.WithMaxConcurrentCalls(1)}, false},
		"limit, with its tenant": {backend.Limit(1), busy, []asyncop.Option{tenant}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := make(map[int]error)
				opts := append([]asyncop.Option{
					asyncop.WithLogger(slog.New(slog.DiscardHandler)),
					asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
						failed[f.Element] = f.Err
						return nil
					}),
				}, asyncop.WithBackend(backend.New("payments", of.backend), of.opts...))
				op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(of.call), 10*time.Second, 2, retried(1), opts...)
				settlements := make([]message.Settlement, 2)
				for m, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
					for i := range settlements {
						yield(message.New(i, &message.Meta{ID: fmt.Sprint(i)}, func(v message.Settlement) { settlements[i] = v }), nil)
						time.Sleep(time.Second)
					}
					time.Sleep(time.Minute)
				}) {
					require.NoError(t, err)
					m.Ack()
				}
				require.True(t, settlements[0].Kind.IsSafe(), "%v", settlements[0])
				if of.givenBack {
					require.Equal(t, message.Released, settlements[1].Kind, "%v", failed)
					require.ErrorIs(t, settlements[1].Err, asyncop.ErrBackendDown)
					require.Positive(t, settlements[1].Delay)
					return
				}
				require.Equal(t, message.HandedOver, settlements[1].Kind, "%v", settlements[1].Err)
				require.NotErrorIs(t, failed[1], asyncop.ErrBackendDown)
				require.ErrorIs(t, failed[1], context.DeadlineExceeded)
			})
		})
	}
}

// First attempts that wait for their tenant do not count as waiting retries, so
// WithMaxWaiting does not count them.
func TestFirstAttemptsThatWaitAreNoRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("payments", backend.TenantRate(1, time.Second))
		calls := 0
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(func(_ context.Context, in int) (int, error) {
			if calls++; calls == 1 {
				return 0, errors.New("again")
			}
			return in, nil
		}), time.Hour, 100, retried(1).WithMaxWaiting(1),
			asyncop.WithBackend(b, asyncop.Tenant(func(int) string { return "a" })), asyncop.WithMaxConcurrentCalls(1))
		done := make(chan int)
		go func() { done <- consume(t, op, 10) }()
		time.Sleep(500 * time.Millisecond)
		require.EqualValues(t, 1, op.Stats().WaitingForRetry)
		require.Equal(t, 10, <-done)
		require.Zero(t, op.Stats().WaitingForRetry)
		require.EqualValues(t, 1, op.Stats().RetriesOnError)
	})
}
