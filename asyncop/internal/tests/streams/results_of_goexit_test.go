package streams_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// leavesBy is a predicate, or similar user code, that ends its goroutine.
func leavesBy[T any](T) bool { runtime.Goexit(); return true }

type exitingStrategy struct {
	*strategies.FixedDelayStrategy[string]
	canRetry, backoff func(int)
}

func (s exitingStrategy) CanRetry(attempts int) bool {
	s.canRetry(attempts)
	return s.FixedDelayStrategy.CanRetry(attempts)
}

func (s exitingStrategy) BackoffTime(attempts int) time.Duration {
	s.backoff(attempts)
	return s.FixedDelayStrategy.BackoffTime(attempts)
}

// User code that ends the goroutine which iterates over the results ends the operator and
// has no other effect, whatever its purpose (law A6).
func TestChainedGoexitAnywhere(t *testing.T) {
	fixed := func() *strategies.FixedDelayStrategy[string] {
		return strategies.FixedDelay[string](3, time.Second)
	}
	onError := func() *strategies.FixedDelayStrategy[string] {
		return fixed().RetryIfException(predicates.HasException)
	}
	exit := func(int) { runtime.Goexit() }
	pass := func(int) {}
	safe := predicates.ByException[string](predicates.HasException, optest.SafeReason)
	retry := strategies.ReasonStrategyFunc[string](func(context.Context, *optest.View) (strategies.Action, error) {
		return strategies.Action{Retry: true, Delay: time.Second}, nil
	})
	exitingJitter := func(time.Duration, *rand.Rand) time.Duration { runtime.Goexit(); return 0 }
	exitingDecide := strategies.ReasonStrategyFunc[string](func(context.Context, *optest.View) (strategies.Action, error) {
		runtime.Goexit()
		return strategies.Action{}, nil
	})
	strategyOf := map[string]strategies.Retry[string]{
		"result predicate":     fixed().RetryIfResult(leavesBy[[]string]),
		"exception predicate":  fixed().RetryIfException(leavesBy[error]),
		"CanRetry":             exitingStrategy{onError(), exit, pass},
		"BackoffTime":          exitingStrategy{onError(), pass, exit},
		"classifier":           strategies.ReasonAware(func(*optest.View) (predicates.Reason, bool) { return optest.SafeReason, leavesBy(0) }, nil),
		"jitter":               strategies.ReasonAware(safe, retry).Immediate().WithJitter(exitingJitter),
		"jitter, off the loop": strategies.ReasonAware(safe, retry).WithJitter(exitingJitter),
		"Decide":               strategies.ReasonAware(safe, exitingDecide).Immediate(),
	}
	fails := func(context.Context, string) (string, error) { return "", optest.ErrBroken }
	functions := map[string]asyncop.AsyncFunction[string, string]{
		"at once": asyncop.Func(func(_ context.Context, _ string, result optest.Future) error {
			result.CompleteExceptionally(optest.ErrBroken)
			return nil
		}),
		"a result": asyncop.Func(func(_ context.Context, _ string, result optest.Future) error { result.Complete("x"); return nil }),
		"blocking": asyncop.Blocking(fails),
		"later": asyncop.Func(func(_ context.Context, _ string, result optest.Future) error {
			time.AfterFunc(time.Second, func() { result.CompleteExceptionally(optest.ErrBroken) })
			return nil
		}),
		"attempt timeout": asyncop.Func(func(context.Context, string, optest.Future) error { return nil }),
		"batch": asyncop.Batched(func(context.Context, []string) ([]asyncop.Result[string], error) {
			return nil, optest.ErrBroken
		}, 2, time.Second),
	}
	for what, strategy := range strategyOf {
		for when, fn := range functions {
			for _, policy := range []asyncop.Option{
				asyncop.WithExhaustedAsFailure(), asyncop.WithDropOnFailure(),
				asyncop.WithFailureSink(func(context.Context, asyncop.Failure[string]) error { return nil }),
			} {
				for _, handled := range []bool{false, true} {
					t.Run(what+", "+when, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							fn := fn
							if handled {
								fn = asyncop.HandleFailure(fn, func(_ context.Context, f asyncop.Failure[string]) ([]string, error) { return nil, f.Err })
							}
							ends := 0
							op := asyncop.UnorderedWaitWithRetry(fn, time.Minute, 4, strategy, policy,
								asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithAttemptTimeout(2*time.Second),
								asyncop.WithObserver(endsCounted{&ends}), asyncop.WithMaxConcurrentCalls(3))
							exited := true
							looped := make(chan struct{})
							go func() {
								defer close(looped)
								for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a", "b", "c", "d"})) {
									_ = err // the last error equals Err
								}
								exited = false
							}()
							<-looped
							<-op.Done()
							synctest.Wait() // calls on workers return
							s := op.Stats()
							optest.CheckBalance(t, s)
							require.Equal(t, make([]int64, 5), []int64{s.InFlight, s.Running, s.Deciding, s.WaitingForRetry, s.WaitingForKey})
							require.EqualValues(t, s.Accepted+s.Discarded, ends)
							if exited {
								require.ErrorContains(t, op.Err(), "ended the goroutine of the operator")
							}
						})
					})
				}
			}
		}
	}
}

// endsCounted counts elements that have ended.
type endsCounted struct{ n *int }

func (endsCounted) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (endsCounted) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }
func (endsCounted) AttemptEnded(context.Context, observe.Outcome)               {}
func (e endsCounted) Ended(context.Context, observe.Ending)                     { *e.n++ }

// leavingObserver ends its goroutine in one of its methods.
type leavingObserver struct{ at string }

func (o leavingObserver) leave(at string) {
	if o.at == at {
		runtime.Goexit()
	}
}

func (o leavingObserver) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	o.leave("Accepted")
	return ctx
}

func (o leavingObserver) AttemptStarted(ctx context.Context, _ int) context.Context {
	o.leave("AttemptStarted")
	return ctx
}
func (o leavingObserver) AttemptEnded(context.Context, observe.Outcome) { o.leave("AttemptEnded") }
func (o leavingObserver) Ended(context.Context, observe.Ending)         { o.leave("Ended") }
func (o leavingObserver) TryAdmit() bool                                { o.leave("TryAdmit"); return true }
func (o leavingObserver) Notify(f func())                               { f() }

// The same applies to observers, gates, keys, timeouts and costs (law A6).
func TestChainedGoexitOfWhatIsAskedForEachElement(t *testing.T) {
	plain := asyncop.WithAttemptTimeout(time.Second)
	cases := map[string]asyncop.Option{
		"key": plain, "cost": asyncop.WithBackend(optest.Limited(1), asyncop.Cost(func(string) float64 { runtime.Goexit(); return 0 })),
		"timeout": asyncop.WithTimeoutFor(func(string) time.Duration { runtime.Goexit(); return 0 }),
	}
	for _, at := range []string{"Accepted", "AttemptStarted", "AttemptEnded", "Ended", "TryAdmit"} {
		cases[at] = asyncop.WithObserver(leavingObserver{at})
	}
	functions := map[string]asyncop.AsyncFunction[string, string]{
		"at once":  asyncop.Func(func(_ context.Context, _ string, result optest.Future) error { result.Complete("x"); return nil }),
		"failing":  asyncop.Func(func(context.Context, string, optest.Future) error { return optest.ErrBroken }),
		"blocking": asyncop.Blocking(func(context.Context, string) (string, error) { return "x", nil }),
		"hanging":  asyncop.Func(func(context.Context, string, optest.Future) error { return nil }),
	}
	for what, opt := range cases {
		for when, fn := range functions {
			t.Run(what+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					key := func(in string) string {
						if what == "key" {
							runtime.Goexit()
						}
						return in
					}
					ends := 0
					op := asyncop.KeyOrderedWait(fn, key, time.Minute, 4, nil, opt, asyncop.WithLogger(slog.New(slog.DiscardHandler)),
						asyncop.WithDropOnFailure(), asyncop.WithObserver(endsCounted{&ends}))
					exited := true
					looped := make(chan struct{})
					go func() {
						defer close(looped)
						for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a", "b", "c", "d"})) {
							_ = err // the last error equals Err
						}
						exited = false
					}()
					<-looped
					<-op.Done()
					synctest.Wait()
					s := op.Stats()
					optest.CheckBalance(t, s)
					require.Equal(t, make([]int64, 5), []int64{s.InFlight, s.Running, s.Deciding, s.WaitingForRetry, s.WaitingForKey})
					require.EqualValues(t, s.Accepted+s.Discarded, ends)
					if exited {
						require.ErrorContains(t, op.Err(), "ended the goroutine of the operator")
					}
				})
			})
		}
	}
}
