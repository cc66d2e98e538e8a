package asyncop

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// Law A5: a blocking call is not made if its element has ended, for whatever reason,
// while the call waited for a processor. Its permit is returned.
func TestCallsOfEndedElementsAreNotMade(t *testing.T) {
	for name, around := range map[string]func(AsyncFunction[string, string]) AsyncFunction[string, string]{
		"direct":  func(fn AsyncFunction[string, string]) AsyncFunction[string, string] { return fn },
		"wrapped": func(fn AsyncFunction[string, string]) AsyncFunction[string, string] { return Func(fn.AsyncInvoke) },
	} {
		start := func(opts ...Option) (op *AsyncWaitOperator[string, string], calls *atomic.Int32, release func()) {
			calls = new(atomic.Int32)
			fn := Blocking(func(context.Context, string) (string, error) { calls.Add(1); return "", nil })
			opts = append(opts, WithMaxConcurrentCalls(2), WithLogger(slog.New(slog.DiscardHandler)))
			op = UnorderedWait(around(fn), time.Second, 4, opts...)
			w := op.driver.Workers()
			resume := w.Hold()
			op.In() <- "a"
			op.In() <- "b"
			synctest.Wait()
			return op, calls, func() { resume(); synctest.Wait() }
		}
		t.Run(name+"/timeout", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				op, calls, release := start(WithDropOnFailure(), WithContext(ctx))
				time.Sleep(time.Second)
				synctest.Wait()
				assert.EqualValues(t, 2, op.Stats().Timeouts)
				assert.EqualValues(t, 2, op.Stats().Running, "they have their permits")
				release()
				assert.Zero(t, calls.Load())
				assert.Zero(t, op.Stats().Running)
				op.In() <- "c"
				assert.Empty(t, <-op.Out())
				assert.EqualValues(t, 1, calls.Load())
				close(op.In())
				assert.NoError(t, op.Wait())
			})
		})
		t.Run(name+"/cancel", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := errors.New("over")
				ctx, cancel := context.WithCancelCause(t.Context())
				op, calls, release := start(WithContext(ctx))
				cancel(ended)
				assert.ErrorIs(t, op.Wait(), ended)
				release()
				assert.Zero(t, calls.Load())
				close(op.In())
			})
		})
	}
}

// Law A5: a call is not made if its element is cut off in the step in which it was
// accepted. Its permit is returned although the end of the operator is delayed by a
// failure sink that does not return.
func TestCallsOfTheLastStepAreNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		fn := Blocking(func(context.Context, string) (string, error) {
			calls.Add(1)
			runtime.Goexit() // ends the only worker
			return "", nil
		})
		gate := make(chan struct{})
		hold := strategies.FixedDelay[string](1, time.Second).RetryIfException(func(error) bool { <-gate; return false })
		wait := make(chan struct{})
		var taken atomic.Int32
		op := UnorderedWaitWithRetry(fn, time.Minute, 4, hold,
			WithFailureSink(func(context.Context, Failure[string]) error {
				<-wait
				taken.Add(1)
				return nil
			}), WithLogger(slog.New(slog.DiscardHandler)))
		op.In() <- "holds the loop"
		synctest.Wait()
		op.In() <- "cut off"
		op.In() <- 1 // of the wrong type
		close(gate)
		synctest.Wait()
		var wrong *TypeError
		assert.ErrorAs(t, op.Err(), &wrong)
		assert.EqualValues(t, 1, calls.Load())
		assert.EqualValues(t, 2, op.Stats().Attempts)
		assert.Zero(t, op.Stats().Running)
		close(wait)
		assert.ErrorAs(t, op.Wait(), &wrong)
		assert.EqualValues(t, 2, taken.Load())
		assert.EqualValues(t, 1, calls.Load())
		close(op.In())
	})
}

// Law A5: no worker is started for calls that were offered when a cancel came, because
// the loop checks for the cancel first.
func TestBlocking_NoWorkerAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		fn := Blocking(func(context.Context, string) (string, error) { calls.Add(1); return "", nil })
		d := unstarted(newConfig(nil), fn, strategies.NoRetry[string](), time.Minute)
		d.In() <- "a"
		assert.True(t, d.Step(), "offers it")
		d.Host().Cancel(errors.New("over"))
		assert.False(t, d.Step())
		assert.Zero(t, d.Workers().Due())
		d.Finish()
		synctest.Wait()
		assert.Zero(t, calls.Load())
		assert.Zero(t, d.Counts().Running)
		close(d.In())
	})
}

// Law A5: the caller checks on its own whether the call may begin, because the loop may
// not have noticed a cancel yet, or may be busy at the deadline. The permit is returned,
// and no completion counts as late.
func TestCallsThatAreLateAreNotMade(t *testing.T) {
	for name, tt := range map[string]struct {
		late func(d *drive.Driver[string, string], mock *clock.Mock, cancel func())
		want error
	}{
		"cancelled": {func(_ *drive.Driver[string, string], _ *clock.Mock, cancel func()) { cancel() }, context.Canceled},
		"cancelled just now": {func(d *drive.Driver[string, string], _ *clock.Mock, _ func()) { // contexts derived from it are not cancelled yet
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			d.Host().User = ended
		}, context.Canceled},
		"at its deadline":   {func(_ *drive.Driver[string, string], mock *clock.Mock, _ func()) { mock.Add(time.Second) }, context.DeadlineExceeded},
		"ended by the loop": {func(d *drive.Driver[string, string], _ *clock.Mock, _ func()) { d.Core().Abandon() }, context.Canceled},
		"timed out by itself": {func(d *drive.Driver[string, string], mock *clock.Mock, _ func()) {
			mock.Add(time.Second)
			d.Core().Step()
		}, context.DeadlineExceeded},
		"suspended":            {func(d *drive.Driver[string, string], _ *clock.Mock, _ func()) { d.Host().Suspended.Store(true) }, context.Canceled},
		"a moment before that": {func(_ *drive.Driver[string, string], mock *clock.Mock, _ func()) { mock.Add(time.Second - 1) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mock := clock.NewMock()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := 0
				fn := Blocking(func(context.Context, string) (string, error) { calls++; return "", nil })
				cfg := newConfig([]Option{WithClock(mock), WithContext(ctx), WithDropOnFailure(), WithLogger(slog.New(slog.DiscardHandler))})
				d := unstarted(cfg, fn, strategies.NoRetry[string](), time.Second)
				d.Core().Accept("a")
				j := d.Jobs()[0]
				tt.late(d, mock, cancel)
				var late error // behind a wrapper, the waiting code gets an error
				j.Attempt.RunBlocking(j.Attempt, func(err error) { late = err })
				synctest.Wait()
				assert.Equal(t, tt.want, late)

				d.Workers().Run(j)
				synctest.Wait()
				want := map[bool]int{true: 1}[tt.want == nil]
				assert.Equal(t, want, calls)
				assert.Zero(t, d.Host().Late())
				if core.Look(d.Core()).Oldest == "running" {
					d.Core().Abandon()
				}
				assert.EqualValues(t, 4, core.Look(d.Core()).FreePermits)
				d.Workers().Stop()
			})
		})
	}
}

// No strategy decides, no Before runs, and no timeout handler is called for an element if
// its time for that has passed, its operator was cancelled, or it is left to a
// checkpoint, whether or not the loop has noticed.
func TestOperator_NothingBeginsTooLate(t *testing.T) {
	for what, tt := range map[string]struct {
		phase string
		limit time.Duration
	}{
		"ask": {"deciding", time.Second}, "before": {"preparing", time.Second}, "handler": {"handling", defaultHandlerLimit},
	} {
		for when, late := range map[string]func(d *drive.Driver[string, string], mock *clock.Mock, cancel func()){
			"cancelled":            func(_ *drive.Driver[string, string], _ *clock.Mock, cancel func()) { cancel() },
			"at its deadline":      func(_ *drive.Driver[string, string], mock *clock.Mock, _ func()) { mock.Add(tt.limit) },
			"ended by the loop":    func(d *drive.Driver[string, string], _ *clock.Mock, _ func()) { d.Core().Abandon() },
			"suspended":            func(d *drive.Driver[string, string], _ *clock.Mock, _ func()) { d.Host().Suspended.Store(true) },
			"a moment before that": func(_ *drive.Driver[string, string], mock *clock.Mock, _ func()) { mock.Add(tt.limit - 1) },
		} {
			t.Run(what+"/"+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var begun atomic.Int32
					mock := clock.NewMock()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					fn := withTimeout(Func(func(context.Context, string, ResultFuture[string]) error {
						if what == "handler" {
							return nil
						}
						return errors.New("broken")
					}), func(context.Context, string) ([]string, error) { begun.Add(1); return nil, nil })
					cfg := newConfig([]Option{
						WithClock(mock), WithContext(ctx), WithDropOnFailure(), WithLogger(slog.New(slog.DiscardHandler)),
					})
					d := unstarted(cfg, fn, countingPolicy(&begun, what == "before"), time.Second)
					w := d.Workers()
					resume := w.Hold()
					d.Core().Accept("a")
					if what == "handler" {
						mock.Add(time.Second)
					}
					d.Core().Step()
					assert.Equal(t, tt.phase, core.Look(d.Core()).Oldest)
					late(d, mock, cancel)
					resume()
					synctest.Wait()
					assert.Equal(t, when == "a moment before that", begun.Load() == 1)
					w.Stop()
				})
			})
		}
	}
}

// unstarted returns a driver with four slots that the test drives.
func unstarted(
	cfg config, fn AsyncFunction[string, string], s strategies.Retry[string], timeout time.Duration,
) *drive.Driver[string, string] {
	front := &frontend[string, string]{config: cfg, fn: fn, policy: decision.StepsOf(strategies.PolicyOf(s))}
	front.newDriver(timeout, queue.NewOrdered[*core.Slot[string, string]](4))
	return front.driver
}

// countingPolicy retries every error immediately. It counts the calls of its strategy or,
// if before is set, of the Before function.
func countingPolicy(n *atomic.Int32, before bool) *strategies.Policy[string] {
	classify := predicates.ByException[string](predicates.HasException, predicates.NewReason("TEST", true, false))
	if before {
		refresh := func(context.Context) error { n.Add(1); return nil }
		return strategies.ReasonAware(classify, strategies.ReasonStrategyFunc[string](
			func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
				return strategies.Action{Retry: true, Before: refresh}, nil
			})).Immediate()
	}
	return strategies.ReasonAware(classify, strategies.ReasonStrategyFunc[string](
		func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
			n.Add(1)
			return strategies.Action{}, nil
		}))
}

// withTimeout returns fn with the optional method of a TimeoutHandler.
func withTimeout[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout func(ctx context.Context, in IN) ([]OUT, error),
) AsyncFunction[IN, OUT] {
	return &functionWithTimeout[IN, OUT]{fn, timeout}
}

type functionWithTimeout[IN, OUT any] struct {
	AsyncFunction[IN, OUT]
	timeout func(ctx context.Context, in IN) ([]OUT, error)
}

func (f *functionWithTimeout[IN, OUT]) Timeout(ctx context.Context, in IN) ([]OUT, error) {
	return f.timeout(ctx, in)
}
