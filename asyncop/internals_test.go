package asyncop_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// stubborn counts its concurrent calls and ignores its context.
type stubborn struct {
	running, most atomic.Int32
	release       chan struct{}
}

func (s *stubborn) run() {
	defer s.running.Add(-1)
	if n := s.running.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	<-s.release
}

// User code that ignores its context is bounded by twice the slots, although its elements
// do not wait for it. No further code runs until some returns, and the elements fail with
// an error that reports this.
func TestStubbornUserCodeIsBounded(t *testing.T) {
	const slots, rounds = 10, 30
	for name, limits := range map[string]func(*stubborn) (optest.Setup, time.Duration){
		"strategy": func(u *stubborn) (optest.Setup, time.Duration) {
			return optest.Setup{Timeout: time.Second, Strategy: optest.Because(optest.SafeReason, optest.Decides(
				func(context.Context, *optest.View) (strategies.Action, error) {
					u.run()
					return strategies.RetryAfter(0), nil
				}))}, time.Second
		},
		"before": func(u *stubborn) (optest.Setup, time.Duration) {
			return optest.Setup{Timeout: time.Second, Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Second/10).WithBefore(
				func(context.Context) error { u.run(); return nil })))}, time.Second
		},
		"before, attempt timeouts": func(u *stubborn) (optest.Setup, time.Duration) {
			return optest.Setup{
				Timeout: time.Second, Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second / 10)),
				Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Second/10).WithBefore(
					func(context.Context) error { u.run(); return nil }))),
			}, time.Second
		},
		"timeout handler": func(u *stubborn) (optest.Setup, time.Duration) {
			return optest.Setup{
				Timeout: time.Second, Opts: optest.Options(asyncop.WithHandlerLimit(time.Second)),
				Wrap: optest.WithHandler(func(context.Context, string) ([]string, error) { u.run(); return nil, nil }),
			}, 2 * time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				u := &stubborn{release: make(chan struct{})}
				sink := optest.NewSideSink(false)
				s, every := limits(u)
				s.Opts = append(s.Opts, asyncop.WithFailureSink(sink.Take))
				r := optest.NewRig(t, m, s)
				if name != "timeout handler" {
					r.Answer = optest.Fails
				}
				for round := range rounds {
					for i := range slots {
						r.Op.In() <- fmt.Sprint(i)
					}
					if round < 2 {
						r.Advance(every - 1)
						require.Len(t, sink.Got(), round*slots)
					}
					r.Advance(every)
					require.Len(t, sink.Got(), (round+1)*slots)
				}
				require.EqualValues(t, 2*slots, u.most.Load())
				for i, f := range sink.Got() {
					if i >= 2*slots {
						require.ErrorContains(t, f.Err, "they ignore the ends of their contexts")
					} else {
						require.Equal(t, every, f.Elapsed)
					}
				}

				// When the calls return, others run again.
				r.Answer = func(c *optest.Call) error {
					if c.Attempt == 1 && name != "timeout handler" {
						return optest.ErrBroken
					}
					return nil
				}
				close(u.release)
				r.Advance(0)
				require.Zero(t, u.running.Load())
				r.SendEach("xyz")
				if name == "timeout handler" {
					r.Advance(time.Second)
				} else {
					r.Advance(time.Second / 10)
					for _, e := range []string{"x#2", "y#2", "z#2"} {
						r.Complete(e, e)
					}
					require.Equal(t, "x#2 y#2 z#2", r.Outputs())
				}
				require.NoError(t, r.End())
				require.Len(t, sink.Got(), rounds*slots)
				optest.CheckBalance(t, r.Stats())
			}, slots)
		})
	}
}

// Q2 under concurrent load, counted from outside and, on the loop, from inside. The test
// does not run in a bubble.
func TestCapacityIsNeverExceeded(t *testing.T) {
	for _, capacity := range []int{1, 2, 5, 33} {
		for _, ordered := range []bool{true, false} {
			m := optest.Mode{Ordered: ordered, Capacity: capacity}
			t.Run(m.String(), func(t *testing.T) { checkCapacity(t, m) })
		}
	}
}

func checkCapacity(t *testing.T, m optest.Mode) {
	t.Helper()
	const elements = 500
	var op *asyncop.AsyncWaitOperator[int, int]
	var most, running, mostRunning atomic.Int64
	note := func() {
		if n := int64(asyncop.SlotsTaken(op)); n > most.Load() {
			most.Store(n) // on the loop only
		}
	}
	fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		n := running.Add(1)
		for old := mostRunning.Load(); n > old && !mostRunning.CompareAndSwap(old, n); old = mostRunning.Load() {
		}
		defer running.Add(-1)
		if rand.IntN(3) == 0 {
			return 0, optest.ErrBroken
		}
		return in, nil
	})
	counting := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		note()
		return fn.AsyncInvoke(ctx, in, result)
	})
	s := strategies.FixedDelay[int](50, 10*time.Microsecond).
		RetryIfException(func(err error) bool { note(); return predicates.HasException(err) })
	started := make(chan struct{})
	maxCalls := max(1, m.Capacity/2)
	op = optest.Construct[int, int](m, counting, time.Minute, s, asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(maxCalls),
		asyncop.WithDrainRetries())
	var sent, received atomic.Int64
	go func() {
		defer close(op.In())
		<-started
		for i := range elements {
			if i%10 == 0 {
				op.In() <- optest.Mark(int64(i))
			} else {
				op.In() <- i
			}
			// An element that was sent and has not come out has a slot. received may lag
			// by the element in transfer.
			if n := sent.Add(1) - received.Load(); n > int64(m.Capacity)+1 {
				t.Errorf("%d slots", n)
			}
		}
	}()
	close(started)
	for range op.Out() {
		received.Add(1)
	}
	require.NoError(t, op.Wait())
	require.EqualValues(t, elements, received.Load())
	require.LessOrEqual(t, most.Load(), int64(m.Capacity))
	require.LessOrEqual(t, mostRunning.Load(), int64(maxCalls))
	if m.Capacity <= 5 {
		require.EqualValues(t, m.Capacity, most.Load(), "the capacity was used")
	}
}

// A function that calls a blocking function twice for one attempt, or fails after it has
// started it, does not distort the count.
func TestPermitsOfOddFunctions(t *testing.T) {
	odd := map[string]func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error{
		"two calls": func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			return blocking.AsyncInvoke(ctx, in, result)
		},
		"completes first": func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error {
			result.Complete("early")
			return blocking.AsyncInvoke(ctx, in, result)
		},
		"fails after it": func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			return optest.ErrBroken
		},
		"panics after it": func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			panic(optest.ErrBroken)
		},
		"late": func(ctx context.Context, in string, result optest.Future, blocking optest.Function) error {
			go func() {
				time.Sleep(2 * time.Second) // the element has timed out
				_ = blocking.AsyncInvoke(ctx, in, result)
			}()
			return nil
		},
		"without the context": func(_ context.Context, in string, result optest.Future, blocking optest.Function) error {
			return blocking.AsyncInvoke(context.Background(), in, result)
		},
	}
	for name, invoke := range odd {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				r := optest.NewRig(t, m, optest.Setup{
					Wrap: func(*optest.Hand) optest.Function {
						blocking := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
							time.Sleep(time.Second)
							return in, nil
						})
						return asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
							return invoke(ctx, in, result, blocking)
						})
					},
					Timeout: 1500 * time.Millisecond,
					Opts:    optest.Options(asyncop.WithMaxConcurrentCalls(2), asyncop.WithDropOnFailure()),
				})
				for _, e := range "abcabc" {
					r.Send(string(e))
					r.Advance(time.Minute)
					require.Equal(t, 2, asyncop.FreePermits(r.Op))
				}
				require.NoError(t, r.End())
				s := r.Stats()
				require.Zero(t, s.Running)
				require.EqualValues(t, 6, s.Completed+s.Dropped)
			})
		})
	}
}
