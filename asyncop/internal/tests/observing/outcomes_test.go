package observing_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
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

// recorder is an observer that records the events of each element. It panics at the start
// of the attempt whose number is breaksAt.
type recorder struct {
	breaksAt int
	begun    map[string]int
	attempts map[string][]observe.Outcome
	endings  map[string]observe.Ending
}

func newRecorder() *recorder {
	return &recorder{begun: map[string]int{}, attempts: map[string][]observe.Outcome{}, endings: map[string]observe.Ending{}}
}

func (o *recorder) Accepted(ctx context.Context, element any, _ bool) context.Context {
	return context.WithValue(ctx, elementKey{}, element)
}

func (o *recorder) AttemptStarted(ctx context.Context, number int) context.Context {
	o.begun[ctx.Value(elementKey{}).(string)]++
	if number == o.breaksAt {
		panic("broken")
	}
	return ctx
}

func (o *recorder) AttemptEnded(ctx context.Context, out observe.Outcome) {
	in := ctx.Value(elementKey{}).(string)
	o.attempts[in] = append(o.attempts[in], out)
}

func (o *recorder) Ended(ctx context.Context, e observe.Ending) {
	o.endings[ctx.Value(elementKey{}).(string)] = e
}

// failsAfter returns a function that fails an element after the time that after returns.
func failsAfter(after func(in string) time.Duration) asyncop.AsyncFunction[string, string] {
	return asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
		time.AfterFunc(after(in), func() { result.CompleteExceptionally(errors.New("of " + in)) })
		return nil
	})
}

// safely returns a policy that retries errors of calls without effect, after 10 s.
func safely() *strategies.Policy[string] {
	safe := predicates.ByException[string](predicates.HasException, optest.SafeReason)
	return strategies.ReasonAware(safe, strategies.ReasonStrategyFunc[string](func(context.Context, *optest.View) (strategies.Action, error) {
		return strategies.Action{Retry: true, Delay: 10 * time.Second}, nil
	}))
}

// Law O1: a policy that ends the goroutine of its operator leaves an outcome for the
// element that it has judged, and for no other element.
func TestOutcomeOfAPolicyThatEndsTheGoroutine(t *testing.T) {
	for name, policy := range map[string]*strategies.Policy[string]{"on the loop": safely().Immediate(), "beside it": safely()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, n := newRecorder(), 0
				op := asyncop.OrderedWaitWithRetry(failsAfter(func(in string) time.Duration {
					return time.Duration(in[0]-'a'+1) * time.Second
				}), time.Minute, 4, policy.WithJitter(func(d time.Duration, _ *rand.Rand) time.Duration {
					if n++; n == 2 {
						runtime.Goexit()
					}
					return d
				}), asyncop.WithObserver(all))
				go op.ResultsOf(asyncop.FromSlice([]string{"a", "b", "c"}))(func(string, error) bool { return true })
				<-op.Done()
				require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, all.begun)
				for in, want := range map[string]string{"a": "of a", "b": "of b", "c": context.Canceled.Error()} {
					require.Len(t, all.attempts[in], 1, in)
					require.EqualError(t, all.attempts[in][0].Err, want)
				}
				require.Equal(t, 2*time.Second, all.attempts["c"][0].Duration, "until it was cut off")
				for _, w := range op.Timelines() {
					require.Len(t, w.Steps, 1, w.Element)
				}
			})
		})
	}
}

// Law O1: a function that ends the goroutine of its operator has begun an attempt, which
// ends with the operator, even if the policy has just judged another attempt.
func TestAttemptOfAFunctionThatEndsTheGoroutine(t *testing.T) {
	all := newRecorder()
	op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(_ context.Context, in string, _ optest.Future) error {
		if in == "b" {
			runtime.Goexit()
		}
		return errors.New("of " + in)
	}), time.Minute, 4, safely().Immediate(), asyncop.WithObserver(all))
	go op.ResultsOf(asyncop.FromSlice([]string{"a", "b"}))(func(string, error) bool { return true })
	<-op.Done()
	require.Equal(t, map[string]int{"a": 1, "b": 1}, all.begun)
	require.Len(t, all.attempts["b"], 1)
	require.ErrorIs(t, all.attempts["b"][0].Err, context.Canceled)
}

// Law X1: a policy that breaks before it has found a reason does not use the reason of
// the previous element, whether or not its strategy runs on the loop.
func TestReasonOfThePolicyThatBreaks(t *testing.T) {
	policy := strategies.ReasonAware(predicates.ByException[string](predicates.HasException, optest.SafeReason),
		strategies.ReasonStrategyFunc[string](func(context.Context, *optest.View) (strategies.Action, error) { return strategies.Action{}, nil }),
	).IdempotentIf(func(in any) bool {
		if in == "b" {
			panic("idempotent?")
		}
		return false
	})
	for name, policy := range map[string]*strategies.Policy[string]{"on the loop": policy.Immediate(), "beside it": policy} {
		all := newRecorder()
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(_ context.Context, in string, _ optest.Future) error { return errors.New("of " + in) }),
			time.Minute, 1, policy, asyncop.WithDropOnFailure(), asyncop.WithObserver(all))
		for _, err := range op.Results(slices.Values([]string{"a", "b"})) {
			require.NoError(t, err)
		}
		require.False(t, all.endings["a"].InDoubt, name)
		require.True(t, all.endings["b"].InDoubt, name)
	}
}

// The duration of an attempt does not include the time of its policy, whether it is
// measured for an observer or only for the timeline.
func TestDurationWithoutThePolicy(t *testing.T) {
	for _, observed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all := newRecorder()
			opts := []asyncop.Option{asyncop.WithDropOnFailure()}
			if observed {
				opts = append(opts, asyncop.WithObserver(all))
			}
			op := asyncop.OrderedWaitWithRetry(failsAfter(func(string) time.Duration { return time.Second }), time.Minute, 4,
				strategies.FixedDelay[string](1, time.Second).RetryIfException(func(error) bool { time.Sleep(100 * time.Millisecond); return false }), opts...)
			for _, err := range op.Results(slices.Values([]string{"a"})) {
				require.NoError(t, err)
			}
			if observed {
				require.Equal(t, time.Second, all.attempts["a"][0].Duration)
			}
			require.Equal(t, time.Second, op.Timelines()[0].Steps[0].Duration)
		})
	}
}

// Nor does it include the time of a strategy that decides about a result and may block.
func TestDurationWithoutTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := strategies.ReasonAware(func(v *optest.View) (predicates.Reason, bool) { return optest.SafeReason, len(v.Results) == 0 },
			strategies.ReasonStrategyFunc[string](func(context.Context, *optest.View) (strategies.Action, error) {
				time.Sleep(5 * time.Second)
				return strategies.Action{}, nil
			}))
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(_ context.Context, _ string, result optest.Future) error {
			time.AfterFunc(time.Second, func() { result.Complete() })
			return nil
		}), 10*time.Second, 4, policy)
		for _, err := range op.Results(slices.Values([]string{"a"})) {
			require.NoError(t, err)
		}
		require.Len(t, op.Timelines(), 1, "it was slow")
		require.Equal(t, time.Second, op.Timelines()[0].Steps[0].Duration)
	})
}

// A Before runs before its own retry, or not at all.
func TestStepBeforeARetryThatAnObserverBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, steps := newRecorder(), 0
		all.breaksAt = 2
		policy := strategies.ReasonAware(predicates.ByException[string](predicates.HasException, optest.SafeReason),
			strategies.ReasonStrategyFunc[string](func(_ context.Context, v *optest.View) (strategies.Action, error) {
				a := strategies.Action{Retry: v.Number < 3, Delay: time.Second}
				if v.Number == 1 {
					a.Before = func(context.Context) error { steps++; return nil }
				}
				return a, nil
			})).Immediate()
		op := asyncop.OrderedWaitWithRetry(failsAfter(func(string) time.Duration { return time.Second }), time.Minute, 4, policy,
			asyncop.WithDropOnFailure(), asyncop.WithObserver(all))
		for _, err := range op.Results(slices.Values([]string{"a"})) {
			require.NoError(t, err)
		}
		require.Len(t, all.attempts["a"], 3)
		require.Zero(t, steps)
	})
}

// An element that has a timeline is measured exactly: it is slow even if AsyncInvoke
// itself took the time.
func TestTimelineOfAnElementThatBlocksTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
			if asyncop.AttemptFromContext(ctx) == 1 {
				return errors.New("not yet")
			}
			time.Sleep(40 * time.Second)
			result.Complete(in)
			return nil
		}), time.Minute, 4, strategies.FixedDelay[string](1, time.Second).RetryIfException(predicates.HasException))
		for _, err := range op.Results(slices.Values([]string{"a"})) {
			require.NoError(t, err)
		}
		require.Len(t, op.Timelines(), 1)
		require.Equal(t, 40*time.Second, op.Timelines()[0].Steps[1].Duration)
	})
}

// The same applies to an element that asks for its timeline and succeeds immediately.
func TestTimelineOfAnElementThatAsksAndBlocksTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in asking, result asyncop.ResultFuture[asking]) error {
			time.Sleep(time.Second)
			result.Complete(in)
			return nil
		}), time.Minute, 4)
		for _, err := range op.Results(slices.Values([]asking{6})) {
			require.NoError(t, err)
		}
		require.Len(t, op.Timelines(), 1)
		require.Equal(t, time.Second, op.Timelines()[0].Steps[0].Duration)
	})
}
