package calls_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// forEachBlocking runs body with ForEachMode for a plain blocking function, which the
// loop starts itself, and for a blocking function inside a user's function.
func forEachBlocking(t *testing.T, body func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function)) {
	t.Helper()
	t.Run("bare", func(t *testing.T) {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) { body(t, m, func(fn optest.Function) optest.Function { return fn }) })
	})
	t.Run("wrapped", func(t *testing.T) {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			body(t, m, func(fn optest.Function) optest.Function { return &optest.Wrapper{Inner: fn} })
		})
	})
}

// A slot is not a permit: elements beyond the call limit hold a slot and wait.
func TestCallsAreBoundedApartFromSlots(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(2))})
		r.SendEach("abcd")
		require.Equal(t, "a#1 b#1", r.Calls())
		s := r.Stats()
		require.EqualValues(t, 4, s.Accepted)
		require.EqualValues(t, 4, s.InFlight)
		require.EqualValues(t, 2, s.Running)
		r.Complete("b#1", "B")
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		r.Complete("a#1", "A")
		r.Complete("c#1", "C")
		r.Complete("d#1", "D")
		require.NoError(t, r.End())
		require.Zero(t, r.Stats().Running)
	})
}

func TestDefaultCallLimitIsTheCapacity(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abc")
		require.EqualValues(t, 3, r.Stats().Running)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	}, 3)
}

// A limit above the capacity has no effect.
func TestCallLimitAboveTheCapacity(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(100))})
		r.Answer = optest.Upper
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "A B C", r.Outputs())
		require.Zero(t, r.Stats().Running)
	}, 1)
}

// With a callback function, the permit is returned when the attempt ends: by a result, an
// error, an attempt timeout or a timeout.
func TestCallbackGivesItsPermitBackWithTheAttempt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 2 * time.Second, Strategy: optest.RetryAll(1, time.Second),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithAttemptTimeout(900*time.Millisecond),
				asyncop.WithDropOnFailure()),
		})
		r.SendEach("abcde")
		r.Complete("a#1", "A") // result
		r.Fail("b#1", optest.ErrBroken)
		r.Advance(900 * time.Millisecond) // the attempt timeout of c#1
		require.Equal(t, "a#1 b#1 c#1 d#1", r.Calls())
		r.Advance(900 * time.Millisecond) // the attempt timeout of d#1, and b's retry goes before e
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@900ms b#2@1.8s", r.CallTimes())
		r.Advance(200 * time.Millisecond) // the deadline of all
		s := r.Stats()
		require.EqualValues(t, 4, s.Timeouts)
		require.Zero(t, s.Running)
		require.NoError(t, r.End())
	})
}

func TestBackoffHoldsNoPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken)
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		s := r.Stats()
		require.EqualValues(t, 1, s.Running)
		require.EqualValues(t, 2, s.WaitingForRetry)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

func TestRetriesGoFirstTheOldestBeforeTheOthers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(3)),
		})
		for _, e := range []string{"a", "b", "c"} {
			r.SendEach(e)
			r.Advance(time.Millisecond)
		}
		for _, e := range []string{"c", "a", "b"} { // the order in which they become due
			r.Fail(e+"#1", optest.ErrBroken)
			r.Advance(time.Millisecond)
		}
		r.SendEach("xyzf") // f waits for its first attempt
		r.Advance(time.Second)
		for _, e := range []string{"x", "y", "z"} {
			r.Complete(e + "#1")
		}
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1 a#2 b#2 c#2", r.Calls())
		r.Complete("b#2")
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1 a#2 b#2 c#2 f#1", r.Calls())
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

func TestNewElementsDoNotOvertake(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, 0), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.Script("a#1", func(*optest.Call) error { time.Sleep(time.Second); return optest.ErrBroken }) // the loop is busy
		r.Op.In() <- "a"
		synctest.Wait()
		r.Op.In() <- "b" // arrives together with a's retry
		r.Advance(2 * time.Second)
		require.Equal(t, "a#1 a#2", r.Calls())
		r.Complete("a#2", "A")
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
	})
}

// Nor does it when more permits become free at once than the operator hands out in one
// step.
func TestNewElementsDoNotOvertakeMany(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 600
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(200))})
		for i := range 400 { // half of them wait
			r.Op.In() <- strconv.Itoa(i)
		}
		synctest.Wait()
		first := slices.Clone(r.Made)
		require.Len(t, first, 200)
		for i := range 50 {
			r.Op.In() <- strconv.Itoa(400 + i)
		}
		for _, c := range first {
			c.Complete()
		}
		synctest.Wait()
		for i, c := range r.Made {
			require.Equal(t, strconv.Itoa(i), c.In)
		}
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

// A blocking call returns its permit when it returns. A call that ignores its context
// keeps the permit beyond the timeout.
func TestBlockingCallThatIgnoresItsContextKeepsItsPermit(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function { return around(optest.BlockingHand(h, true)) },
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		r.Advance(1500 * time.Millisecond)
		r.SendEach("b")
		require.Equal(t, "a#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.EqualValues(t, 1, r.Stats().Running)
		r.Complete("a#1", "late")
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Equal(t, "B", r.Outputs())
		require.EqualValues(t, 1, r.Stats().LateCompletions)
		require.Zero(t, r.Stats().Running)
	})
}

// The same applies beyond the attempt timeout: the retry has to wait.
func TestBlockingCallKeepsItsPermitBeyondTheAttemptTimeout(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, 0),
			Wrap: func(h *optest.Hand) optest.Function { return around(optest.BlockingHand(h, true)) },
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("a")
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().AttemptTimeouts)
		r.Complete("a#1", "late")
		require.Equal(t, "a#1@0s a#2@10s", r.CallTimes())
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A", r.Outputs())
	})
}

// A call that obeys its context frees the permit at the timeout.
func TestBlockingCallThatHeedsItsContext(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function { return around(optest.BlockingHand(h, false)) },
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		r.Advance(900 * time.Millisecond)
		r.SendEach("b")
		r.Advance(100 * time.Millisecond)
		require.Equal(t, "a#1@0s b#1@1s", r.CallTimes())
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Equal(t, "B", r.Outputs())
	})
}

func TestBlockingCallGivesItsPermitBackHoweverItEnds(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function) {
		r := optest.NewRig(t, m, optest.Setup{
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
			Wrap: func(*optest.Hand) optest.Function {
				return around(asyncop.Blocking(func(_ context.Context, in string) (string, error) {
					switch in {
					case "e":
						return "", optest.ErrBroken
					case "n":
						return "", asyncop.ErrNoResult
					case "p":
						panic("broken")
					case "g":
						runtime.Goexit()
					}
					return strings.ToUpper(in), nil
				}))
			},
		})
		r.SendEach("aenpgb")
		require.NoError(t, r.End())
		require.Equal(t, "A B", r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 3, s.Dropped)
		require.EqualValues(t, 3, s.Completed)
		require.Zero(t, s.Running)
	})
}

// A function around a blocking function is called, and the blocking call gets the context
// that it made.
func TestFunctionAroundABlockingOneIsCalled(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			return &optest.Wrapper{Inner: &optest.Wrapper{Inner: optest.BlockingHand(h, false)}}
		}})
		r.SendEach("a")
		require.Equal(t, "of the wrapper", r.Call("a#1").Ctx.Value(optest.ValueKey{}))
		r.Complete("a#1", "A")
		require.NoError(t, r.End())
	})
}

// A wrapper around a blocking function: permits are counted correctly, although the
// wrapper does not handle them.
func TestPermitsOfAWrappedBlockingFunction(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Wrap:    func(h *optest.Hand) optest.Function { return &optest.Wrapper{Inner: optest.BlockingHand(h, true)} },
			Opts:    optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		r.Advance(1500 * time.Millisecond)
		r.SendEach("b")
		require.Equal(t, "a#1", r.Calls())
		r.Complete("a#1", "late")
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Zero(t, r.Stats().Running)
	})
}

// A blocking function that is called inside a blocking call runs under the permit of the
// outer call, which is kept until the outer call returns.
func TestBlockingFunctionInsideABlockingCall(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m optest.Mode, around func(optest.Function) optest.Function) {
		fallback := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			time.Sleep(time.Second)
			return in + " of the fallback", nil
		})
		r := optest.NewRig(t, m, optest.Setup{
			Wrap: func(h *optest.Hand) optest.Function {
				return around(asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					_ = h.AsyncInvoke(ctx, in, nil)
					answer := make(optest.Answers, 1)
					_ = fallback.AsyncInvoke(ctx, in, answer)
					result := <-answer
					time.Sleep(time.Second)
					return result.Result, nil
				}))
			},
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("ab")
		r.Advance(1500 * time.Millisecond)
		require.Equal(t, "a#1", r.Calls())
		r.Advance(500 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().Running)
		r.Advance(2 * time.Second)
		require.Equal(t, "a of the fallback b of the fallback", r.Outputs())
		r.Send("c")
		require.Equal(t, "a#1 b#1 c#1", r.Calls())
		require.NoError(t, r.End())
	})
}

// A timeout handler has no permit, so a blocking function that it calls returns none.
func TestBlockingFunctionInATimeoutHandler(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
			Wrap: func(h *optest.Hand) optest.Function {
				other := asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in + " of another", nil })
				return optest.TimeoutMethod(h, func(ctx context.Context, in string) ([]string, error) {
					answer := make(optest.Answers, 1)
					if err := other.AsyncInvoke(ctx, in, answer); err != nil {
						return nil, err
					}
					a := <-answer
					return []string{a.Result}, a.Err
				})
			},
		})
		r.SendEach("a")
		r.Advance(time.Second)
		require.Equal(t, "a of another", r.Outputs())
		r.SendEach("bc")
		require.Equal(t, "a#1 b#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().Running)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

// An element that is in back-off or waits for a permit has no goroutine.
func TestWaitingElementsHaveNoGoroutine(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1000
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Hour, Strategy: optest.RetryAll(1, time.Minute),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(8)),
		})
		r.Answer = func(c *optest.Call) error {
			if c.In == "waits for its first attempt" {
				return nil
			}
			return optest.ErrBroken
		}
		before := runtime.NumGoroutine()
		for range 500 {
			r.Op.In() <- "in back-off"
		}
		for range 500 {
			r.Op.In() <- "waits for its first attempt"
		}
		require.EqualValues(t, 500, r.Stats().WaitingForRetry)
		require.EqualValues(t, 8, r.Stats().Running)
		require.Less(t, runtime.NumGoroutine(), before+100) // the runtime may start some of its own
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

// spitefulFuture is the future of a wrapper. Its methods break.
type spitefulFuture struct{ breaks func() }

func (f spitefulFuture) Complete(...string)            { f.breaks() }
func (f spitefulFuture) CompleteExceptionally(_ error) { f.breaks() }

// Law A6: if the future of a wrapper breaks, this is an outcome of the element and does
// not end the process.
func TestFutureOfAWrapperThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panic": func() { panic(optest.ErrBroken) }, "Goexit": runtime.Goexit} {
		for end, err := range map[string]error{"result": nil, "error": optest.ErrAgain, "no result": asyncop.ErrNoResult} {
			t.Run(name+"/"+end, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					r := optest.NewRig(t, m, optest.Setup{Wrap: func(*optest.Hand) optest.Function {
						blocking := asyncop.Blocking(func(context.Context, string) (string, error) { return "", err })
						return asyncop.Func(func(ctx context.Context, in string, _ optest.Future) error {
							return blocking.AsyncInvoke(ctx, in, spitefulFuture{breaks})
						})
					}})
					r.Send("a")
					_, broken := errors.AsType[*asyncop.PanicError](r.Wait())
					require.True(t, broken)
					require.Zero(t, r.Stats().Running)
				})
			})
		}
	}
}
