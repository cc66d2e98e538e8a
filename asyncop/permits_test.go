package asyncop_test

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
)

// ---- Permits (WithMaxConcurrentCalls)

// blockingHand is the hand-driven function as a blocking call: it returns when the test answers, or, unless it ignores
// its context, when that ends.
func blockingHand(h *hand, ignoresContext bool) function {
	return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		answer := make(answers, 1)
		_ = h.AsyncInvoke(ctx, in, answer)
		done := ctx.Done()
		if ignoresContext {
			done = nil
		}
		select {
		case a := <-answer:
			return a.result, a.err
		case <-done:
			return "", ctx.Err()
		}
	})
}

// forEachBlocking is forEachMode for a blocking function as it is, which the loop starts by itself, and for one inside of
// a function of the user's.
func forEachBlocking(t *testing.T, body func(t *testing.T, m mode, around func(function) function)) {
	t.Helper()
	t.Run("bare", func(t *testing.T) {
		forEachMode(t, func(t *testing.T, m mode) { body(t, m, func(fn function) function { return fn }) })
	})
	t.Run("wrapped", func(t *testing.T) {
		forEachMode(t, func(t *testing.T, m mode) { body(t, m, func(fn function) function { return &wrapper{fn} }) })
	})
}

// answers is a future for a blocking call.
type answers chan struct {
	result string
	err    error
}

func (a answers) Complete(results ...string) {
	a <- struct {
		result string
		err    error
	}{strings.Join(results, " "), nil}
}

func (a answers) CompleteExceptionally(err error) {
	a <- struct {
		result string
		err    error
	}{"", err}
}

// A slot is not a permit: elements beyond the limit hold a slot and wait.
func TestCallsAreBoundedApartFromSlots(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(2))})
		r.sendEach("abcd")
		require.Equal(t, "a#1 b#1", r.calls())
		s := r.stats()
		require.EqualValues(t, 4, s.Accepted)
		require.EqualValues(t, 4, s.InFlight)
		require.EqualValues(t, 2, s.Running)
		r.complete("b#1", "B")
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		r.complete("a#1", "A")
		r.complete("c#1", "C")
		r.complete("d#1", "D")
		require.NoError(t, r.end())
		require.Zero(t, r.stats().Running)
	})
}

// The default limit is the capacity.
func TestDefaultCallLimitIsTheCapacity(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("abc")
		require.EqualValues(t, 3, r.stats().Running)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	}, 3)
}

// A limit above the capacity does no harm.
func TestCallLimitAboveTheCapacity(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(100))})
		r.answer = upper
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "A B C", r.outputs())
		require.Zero(t, r.stats().Running)
	}, 1)
}

// Callback style gives its permit back when the attempt ends: by result, error, attempt timeout or timeout.
func TestCallbackGivesItsPermitBackWithTheAttempt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: 2 * time.Second, strategy: retryAll(1, time.Second),
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithAttemptTimeout(900*time.Millisecond),
				asyncop.WithDropOnFailure()),
		})
		r.sendEach("abcde")
		r.complete("a#1", "A") // result
		r.fail("b#1", errBroken)
		r.advance(900 * time.Millisecond) // c#1's own time
		require.Equal(t, "a#1 b#1 c#1 d#1", r.calls())
		r.advance(900 * time.Millisecond) // d#1's, and b's retry goes before e
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@900ms b#2@1.8s", r.callTimes())
		r.advance(200 * time.Millisecond) // the deadline of all
		s := r.stats()
		require.EqualValues(t, 4, s.Timeouts)
		require.Zero(t, s.Running)
		require.NoError(t, r.end())
	})
}

// An element in back-off has no permit.
func TestBackoffHoldsNoPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		r.fail("b#1", errBroken)
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		s := r.stats()
		require.EqualValues(t, 1, s.Running)
		require.EqualValues(t, 2, s.WaitingForRetry)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// Retries go before first attempts, the oldest element first.
func TestRetriesGoFirstTheOldestBeforeTheOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithMaxConcurrentCalls(3)),
		})
		for _, e := range []string{"a", "b", "c"} {
			r.sendEach(e)
			r.advance(time.Millisecond)
		}
		for _, e := range []string{"c", "a", "b"} { // the order in which they become due
			r.fail(e+"#1", errBroken)
			r.advance(time.Millisecond)
		}
		r.sendEach("xyzf") // f waits for its first attempt
		r.advance(time.Second)
		for _, e := range []string{"x", "y", "z"} {
			r.complete(e + "#1")
		}
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1 a#2 b#2 c#2", r.calls())
		r.complete("b#2")
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1 a#2 b#2 c#2 f#1", r.calls())
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// An element that has just been accepted does not overtake those that wait.
func TestNewElementsDoNotOvertake(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, 0), opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.script("a#1", func(*call) error { time.Sleep(time.Second); return errBroken }) // the loop is away
		r.op.In() <- "a"
		synctest.Wait()
		r.op.In() <- "b" // is there when a's retry is
		r.advance(2 * time.Second)
		require.Equal(t, "a#1 a#2", r.calls())
		r.complete("a#2", "A")
		r.complete("b#1", "B")
		require.NoError(t, r.end())
	})
}

// Nor when more permits come free at once than the operator hands out in one turn.
func TestNewElementsDoNotOvertakeMany(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 600
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(200))})
		for i := range 400 { // half of them wait
			r.op.In() <- strconv.Itoa(i)
		}
		synctest.Wait()
		first := slices.Clone(r.made)
		require.Len(t, first, 200)
		for i := range 50 {
			r.op.In() <- strconv.Itoa(400 + i)
		}
		for _, c := range first {
			c.Complete()
		}
		synctest.Wait()
		for i, c := range r.made {
			require.Equal(t, strconv.Itoa(i), c.in)
		}
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// A blocking call gives its permit back when it returns: one that ignores its context keeps it beyond the timeout.
func TestBlockingCallThatIgnoresItsContextKeepsItsPermit(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m mode, around func(function) function) {
		r := newRig(t, m, setup{
			timeout: time.Second, wrap: func(h *hand) function { return around(blockingHand(h, true)) },
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		r.advance(1500 * time.Millisecond)
		r.sendEach("b")
		require.Equal(t, "a#1", r.calls())
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.EqualValues(t, 1, r.stats().Running)
		r.complete("a#1", "late")
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Equal(t, "B", r.outputs())
		require.EqualValues(t, 1, r.stats().LateCompletions)
		require.Zero(t, r.stats().Running)
	})
}

// The same beyond its own attempt timeout: the retry has to wait.
func TestBlockingCallKeepsItsPermitBeyondTheAttemptTimeout(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m mode, around func(function) function) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, 0),
			wrap: func(h *hand) function { return around(blockingHand(h, true)) },
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("a")
		r.advance(10 * time.Second)
		require.Equal(t, "a#1", r.calls())
		require.EqualValues(t, 1, r.stats().AttemptTimeouts)
		r.complete("a#1", "late")
		require.Equal(t, "a#1@0s a#2@10s", r.callTimes())
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A", r.outputs())
	})
}

// One that heeds its context gives it back at the timeout.
func TestBlockingCallThatHeedsItsContext(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m mode, around func(function) function) {
		r := newRig(t, m, setup{
			timeout: time.Second, wrap: func(h *hand) function { return around(blockingHand(h, false)) },
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		r.advance(900 * time.Millisecond)
		r.sendEach("b")
		r.advance(100 * time.Millisecond)
		require.Equal(t, "a#1@0s b#1@1s", r.callTimes())
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Equal(t, "B", r.outputs())
	})
}

// A blocking call gives its permit back however it ends.
func TestBlockingCallGivesItsPermitBackHoweverItEnds(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m mode, around func(function) function) {
		r := newRig(t, m, setup{
			opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
			wrap: func(*hand) function {
				return around(asyncop.Blocking(func(_ context.Context, in string) (string, error) {
					switch in {
					case "e":
						return "", errBroken
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
		r.sendEach("aenpgb")
		require.NoError(t, r.end())
		require.Equal(t, "A B", r.outputs())
		s := r.stats()
		require.EqualValues(t, 3, s.Dropped)
		require.EqualValues(t, 3, s.Completed)
		require.Zero(t, s.Running)
	})
}

// A function around a blocking one is called, and its call sees the context that it made.
func TestFunctionAroundABlockingOneIsCalled(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{wrap: func(h *hand) function { return &wrapper{&wrapper{blockingHand(h, false)}} }})
		r.sendEach("a")
		require.Equal(t, "of the wrapper", r.call("a#1").ctx.Value(valueKey{}))
		r.complete("a#1", "A")
		require.NoError(t, r.end())
	})
}

// A function around a blocking one: permits are right, although the wrapper knows nothing of them.
func TestPermitsOfAWrappedBlockingFunction(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second,
			wrap:    func(h *hand) function { return &wrapper{blockingHand(h, true)} },
			opts:    options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		r.advance(1500 * time.Millisecond)
		r.sendEach("b")
		require.Equal(t, "a#1", r.calls())
		r.complete("a#1", "late")
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Zero(t, r.stats().Running)
	})
}

// wrapper passes calls on under a context of its own.
type wrapper struct{ inner function }

func (w *wrapper) AsyncInvoke(ctx context.Context, in string, result future) error {
	return w.inner.AsyncInvoke(context.WithValue(ctx, valueKey{}, "of the wrapper"), in, result)
}

func (w *wrapper) Unwrap() any { return w.inner }

// A function that calls a blocking one twice for one attempt, or fails after it has started it, does not upset the count.
func TestPermitsOfOddFunctions(t *testing.T) {
	odd := map[string]func(ctx context.Context, in string, result future, blocking function) error{
		"two calls": func(ctx context.Context, in string, result future, blocking function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			return blocking.AsyncInvoke(ctx, in, result)
		},
		"completes first": func(ctx context.Context, in string, result future, blocking function) error {
			result.Complete("early")
			return blocking.AsyncInvoke(ctx, in, result)
		},
		"fails after it": func(ctx context.Context, in string, result future, blocking function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			return errBroken
		},
		"panics after it": func(ctx context.Context, in string, result future, blocking function) error {
			_ = blocking.AsyncInvoke(ctx, in, result)
			panic(errBroken)
		},
		"late": func(ctx context.Context, in string, result future, blocking function) error {
			go func() {
				time.Sleep(2 * time.Second) // the element has timed out
				_ = blocking.AsyncInvoke(ctx, in, result)
			}()
			return nil
		},
		"without the context": func(_ context.Context, in string, result future, blocking function) error {
			return blocking.AsyncInvoke(context.Background(), in, result)
		},
	}
	for name, invoke := range odd {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				r := newRig(t, m, setup{
					wrap: func(*hand) function {
						blocking := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
							time.Sleep(time.Second)
							return in, nil
						})
						return asyncop.Func(func(ctx context.Context, in string, result future) error {
							return invoke(ctx, in, result, blocking)
						})
					},
					timeout: 1500 * time.Millisecond,
					opts:    options(asyncop.WithMaxConcurrentCalls(2), asyncop.WithDropOnFailure()),
				})
				for _, e := range "abcabc" {
					r.send(string(e))
					r.advance(time.Minute)
					require.Equal(t, 2, asyncop.FreePermits(r.op))
				}
				require.NoError(t, r.end())
				s := r.stats()
				require.Zero(t, s.Running)
				require.EqualValues(t, 6, s.Completed+s.Dropped)
			})
		})
	}
}

// A blocking function that is called inside of a blocking call runs under the permit of that, which is kept until the
// outer one returns.
func TestBlockingFunctionInsideABlockingCall(t *testing.T) {
	forEachBlocking(t, func(t *testing.T, m mode, around func(function) function) {
		fallback := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			time.Sleep(time.Second)
			return in + " of the fallback", nil
		})
		r := newRig(t, m, setup{
			wrap: func(h *hand) function {
				return around(asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					_ = h.AsyncInvoke(ctx, in, nil)
					answer := make(answers, 1)
					_ = fallback.AsyncInvoke(ctx, in, answer)
					result := <-answer
					time.Sleep(time.Second)
					return result.result, nil
				}))
			},
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("ab")
		r.advance(1500 * time.Millisecond)
		require.Equal(t, "a#1", r.calls())
		r.advance(500 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.calls())
		require.EqualValues(t, 1, r.stats().Running)
		r.advance(2 * time.Second)
		require.Equal(t, "a of the fallback b of the fallback", r.outputs())
		r.send("c")
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		require.NoError(t, r.end())
	})
}

// A timeout handler has no permit, so a blocking function that it calls gives none back.
func TestBlockingFunctionInATimeoutHandler(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, opts: options(asyncop.WithMaxConcurrentCalls(1)),
			wrap: func(h *hand) function {
				other := asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in + " of another", nil })
				return timeoutMethod(h, func(ctx context.Context, in string) ([]string, error) {
					answer := make(answers, 1)
					if err := other.AsyncInvoke(ctx, in, answer); err != nil {
						return nil, err
					}
					a := <-answer
					return []string{a.result}, a.err
				})
			},
		})
		r.sendEach("a")
		r.advance(time.Second)
		require.Equal(t, "a of another", r.outputs())
		r.sendEach("bc")
		require.Equal(t, "a#1 b#1", r.calls())
		require.EqualValues(t, 1, r.stats().Running)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// A waiting element has no goroutine: neither in back-off nor without a permit.
func TestWaitingElementsHaveNoGoroutine(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 1000
		r := newRig(t, m, setup{
			timeout: time.Hour, strategy: retryAll(1, time.Minute),
			opts: options(asyncop.WithMaxConcurrentCalls(8)),
		})
		r.answer = func(c *call) error {
			if c.in == "waits for its first attempt" {
				return nil
			}
			return errBroken
		}
		before := runtime.NumGoroutine()
		for range 500 {
			r.op.In() <- "in back-off"
		}
		for range 500 {
			r.op.In() <- "waits for its first attempt"
		}
		require.EqualValues(t, 500, r.stats().WaitingForRetry)
		require.EqualValues(t, 8, r.stats().Running)
		require.Less(t, runtime.NumGoroutine(), before+100) // the runtime may start some of its own
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// spitefulFuture is a future of a wrapper whose methods break.
type spitefulFuture struct{ breaks func() }

func (f spitefulFuture) Complete(...string)            { f.breaks() }
func (f spitefulFuture) CompleteExceptionally(_ error) { f.breaks() }

// Law A6: a wrapper's future that breaks is an outcome of the element, not the end of the process.
func TestFutureOfAWrapperThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panic": func() { panic(errBroken) }, "Goexit": runtime.Goexit} {
		for outcome, err := range map[string]error{"result": nil, "error": errAgain, "no result": asyncop.ErrNoResult} {
			t.Run(name+"/"+outcome, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					r := newRig(t, m, setup{wrap: func(*hand) function {
						blocking := asyncop.Blocking(func(context.Context, string) (string, error) { return "", err })
						return asyncop.Func(func(ctx context.Context, in string, _ future) error {
							return blocking.AsyncInvoke(ctx, in, spitefulFuture{breaks})
						})
					}})
					r.send("a")
					_, broken := errors.AsType[*asyncop.PanicError](r.wait())
					require.True(t, broken)
					require.Zero(t, r.stats().Running)
				})
			})
		}
	}
}
