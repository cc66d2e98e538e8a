package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A3: the timeout has the last word.

// handled is a function whose timeout handler answers with the element and an exclamation mark.
func handled(h *hand) function {
	return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) { return []string{in + "!"}, nil })
}

// A3: an element that is never answered fails at its deadline, not before.
func TestTimeoutFailsTheElement(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second})
		r.sendEach("a")
		r.advance(time.Second - 1)
		require.NoError(t, r.op.Err())
		r.advance(1)
		err := r.wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "a", failed.Element)
		require.Equal(t, time.Second, failed.Elapsed)
		require.Equal(t, 1, failed.Attempts)
		timeout, ok := errors.AsType[*asyncop.TimeoutError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, time.Second, timeout.Limit)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 1, r.stats().Timeouts)
	})
}

// A3: the time is that of all attempts and back-offs together; the error unwraps to that of the last attempt.
func TestTimeoutIsTheTotalOverAllAttempts(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(100, 300*time.Millisecond), opts: options(asyncop.WithDropOnFailure()),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					return []string{in + "!"}, nil
				})
			},
		})
		r.answer = fails
		r.sendEach("a")
		r.advance(5 * time.Second)
		require.Equal(t, "a#1@0s a#2@300ms a#3@600ms a#4@900ms", r.callTimes())
		require.Equal(t, "a!@1s", r.outputTimes())
	})
}

// A3: the error of a timed-out element unwraps to the error of its last attempt.
func TestTimeoutErrorTellsTheLastError(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, 600*time.Millisecond)})
		r.answer = fails
		r.sendEach("a")
		r.advance(time.Second)
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		timeout, _ := errors.AsType[*asyncop.TimeoutError](err)
		require.Equal(t, 2, timeout.Attempts)
	})
}

// A3: the time begins when the slot is taken: waiting for one does not count.
func TestTimeoutCountsFromTheSlot(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		m.capacity = 1
		r := newRig(t, m, setup{timeout: time.Second, wrap: handled})
		r.sendEach("ab") // b waits in In
		r.advance(900 * time.Millisecond)
		r.complete("a#1", "A")
		r.advance(2 * time.Second)
		require.Equal(t, "A@900ms b!@1.9s", r.outputTimes())
	})
}

// A3: but waiting for a permit does, even if no attempt was made at all.
func TestTimeoutCountsWhileWaitingForAPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Second,
			opts:    options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithFailureSink(side.take), asyncop.WithAttemptTimeout(time.Hour)),
			wrap: func(h *hand) function { // keeps its permit
				return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					_ = h.AsyncInvoke(ctx, in, nil)
					time.Sleep(time.Minute)
					return "", nil
				})
			},
		})
		r.sendEach("ab")
		r.advance(time.Second)
		require.Equal(t, "a b", side.elements())
		require.Equal(t, "a#1", r.calls())
		require.Zero(t, side.got()[1].Attempts)
		require.Zero(t, side.got()[1].FirstAttempt)
		require.NoError(t, r.end())
		r.advance(time.Minute) // the call that ignored its context
	})
}

// A3, T1: a completion that was handed in at the deadline wins, even if the loop comes to it later.
func TestCompletionAtTheDeadlineWins(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, opts: options(asyncop.WithDropOnFailure())})
		r.script("b#1", func(*call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.sendEach("a")
		a := r.call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.op.In() <- "b" // and the loop is away from 0.5 to 1.4 s
		time.Sleep(500 * time.Millisecond)
		a.Complete("A")
		r.advance(400 * time.Millisecond)
		require.Equal(t, "A@1.4s", r.outputTimes())
		require.Zero(t, r.stats().Timeouts)
	})
}

// A3: one that comes later loses.
func TestCompletionAfterTheDeadlineLoses(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, wrap: handled})
		r.sendEach("a")
		r.advance(time.Second)
		r.complete("a#1", "A")
		require.NoError(t, r.end())
		require.Equal(t, "a!@1s", r.outputTimes())
	})
}

// A3: an outcome at the deadline that asks for a retry gets none: the timeout decides.
func TestRetryableOutcomeAtTheDeadlineTimesOut(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, 0), wrap: handled})
		r.script("b#1", func(*call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.sendEach("a")
		a := r.call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.op.In() <- "b" // and the loop is away from 0.5 to 1.4 s
		time.Sleep(500 * time.Millisecond)
		a.CompleteExceptionally(errBroken)
		r.advance(450 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.calls())
		require.Equal(t, "a!", r.outputs())
	})
}

// A3 in every phase in which an element waits: running, back-off, retry due but without a permit, never started.
func TestTimeoutEndsAnElementInEveryPhase(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, 100*time.Millisecond), wrap: handled,
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("rbxf")
		r.fail("r#1", errBroken)
		r.fail("b#1", errBroken) // x runs; r and b are in back-off, f waits for its first call
		r.advance(100 * time.Millisecond)
		require.Equal(t, "r#1 b#1 x#1", r.calls())
		require.EqualValues(t, 2, r.stats().WaitingForRetry)
		r.advance(900 * time.Millisecond)
		require.NoError(t, r.end())
		require.Equal(t, "r#1 b#1 x#1", r.calls())
		s := r.stats()
		require.EqualValues(t, 4, s.Timeouts)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Running)
		checkBalance(t, s)
	})
}

// A3: a timeout during the first back-off cancels the retry; the end of input then calls nothing either (Flink leaks
// the handler and calls once more).
func TestTimeoutDuringTheFirstBackoffThenDrain(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		answer := make(chan struct{})
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, 600*time.Millisecond),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(context.Context, string) ([]string, error) {
					<-answer
					return []string{"handled"}, nil
				})
			},
		})
		r.sendEach("a")
		r.advance(500 * time.Millisecond)
		r.fail("a#1", errBroken) // due at 1.1 s, after the deadline
		r.advance(500 * time.Millisecond)
		r.endInput() // while the handler runs
		r.advance(time.Second)
		close(answer)
		require.NoError(t, r.end())
		require.Equal(t, "a#1", r.calls())
		require.Equal(t, "handled", r.outputs())
		s := r.stats()
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Retries())
	})
}

// A3, A5: a loop that comes late finds a retry and the deadline after it due: the deadline decides.
func TestDeadlineGoesBeforeARetryThatCameLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, 800*time.Millisecond), wrap: handled})
		r.script("a#1", fails) // due again at 800 ms
		r.script("b#1", func(*call) error { time.Sleep(600 * time.Millisecond); return nil })
		r.sendEach("a")
		time.Sleep(500 * time.Millisecond)
		r.op.In() <- "b" // and the loop is away from 500 ms to 1.1 s
		r.advance(time.Second)
		require.Equal(t, "a#1 b#1", r.calls())
		require.Equal(t, "a!@1.1s b!@1.5s", r.outputTimes())
		require.NoError(t, r.end())
	})
}

// A3: the same for the own time of an attempt: the element times out, once, and the attempt's timer is gone.
func TestDeadlineGoesBeforeAnAttemptTimeoutThatCameLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, 0), wrap: handled,
			opts: options(asyncop.WithAttemptTimeout(800 * time.Millisecond)),
		})
		r.script("b#1", func(*call) error { time.Sleep(600 * time.Millisecond); return nil })
		r.sendEach("a")
		time.Sleep(500 * time.Millisecond)
		r.op.In() <- "b" // and the loop is away from 500 ms to 1.1 s
		r.advance(700 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.calls())
		require.Equal(t, "a!@1.1s", r.outputTimes())
		require.Zero(t, r.stats().AttemptTimeouts)
		r.advance(time.Minute)
		require.NoError(t, r.end())
	})
}

// A2, A3: an attempt that is completed in the very turn that ends it, by user code on the loop, ends its element once.
func TestCompletionInTheTurnOfTheTimeout(t *testing.T) {
	for name, limit := range map[string]asyncop.Option{
		"of the element": asyncop.WithAttemptTimeout(time.Hour), "of the attempt": asyncop.WithAttemptTimeout(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var a *call
				s := strategies.FixedDelay[string](0, 0).RetryIfResult(func(results []string) bool {
					if results[0] == "B" {
						a.Complete("A") // after the loop has looked at the clock and into the mailbox
					}
					return false
				})
				timeout := map[string]time.Duration{"of the element": time.Second, "of the attempt": time.Hour}[name]
				side := newSideSink(false)
				r := newRig(t, m, setup{timeout: timeout, strategy: s, opts: options(limit, asyncop.WithFailureSink(side.take))})
				r.script("x#1", func(*call) error { time.Sleep(900 * time.Millisecond); return nil })
				r.sendEach("a")
				a = r.call("a#1")
				time.Sleep(500 * time.Millisecond)
				r.sendEach("b")
				b := r.call("b#1")
				r.op.In() <- "x" // and the loop is away from 0.5 to 1.4 s
				b.Complete("B")
				r.advance(900 * time.Millisecond)
				r.complete("x#1", "X")
				require.NoError(t, r.end())
				require.Equal(t, "B X", r.outputs())
				require.Equal(t, "a", side.elements())
				require.EqualValues(t, 1, r.stats().LateCompletions)
				require.Zero(t, r.stats().Running)
				checkBalance(t, r.stats())
			})
		})
	}
}

// A3: the retry timer of an element that timed out never fires, whatever the element in its slot does by then.
func TestTimeoutCancelsTheRetryTimer(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		m.capacity = 1
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, 400*time.Millisecond), wrap: handled,
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.script("a#1", fails)
		r.script("a#2", fails)
		r.sendEach("ab") // a#3 would be due at 800 ms and runs until the deadline; b takes the slot at 1 s
		r.advance(1100 * time.Millisecond)
		require.Equal(t, "a#1@0s a#2@400ms a#3@800ms b#1@1s", r.callTimes())
		r.advance(700 * time.Millisecond)
		require.Equal(t, "a#1 a#2 a#3 b#1", r.calls())
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Equal(t, "a! B", r.outputs())
	})
}

// A3 (FLINK-40456): a timeout that meets a retry scheduled in the same moment; the element must not hang.
func TestTimeoutRacesAJustScheduledRetry(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		for _, delay := range []time.Duration{0, 1, 499 * time.Millisecond, 500 * time.Millisecond, 501 * time.Millisecond} {
			r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(1, delay), wrap: handled})
			r.script("b#1", func(*call) error { time.Sleep(500 * time.Millisecond); return nil }) // until a's deadline
			r.sendEach("a")
			a := r.call("a#1")
			time.Sleep(500 * time.Millisecond)
			r.op.In() <- "b"
			a.CompleteExceptionally(errBroken) // handled at 1 s: retry and timeout meet
			r.advance(2 * time.Second)
			require.Equal(t, "a!@1s b!@1.5s", r.outputTimes(), delay)
			require.Equal(t, "a#1 b#1", r.calls(), delay)
			require.NoError(t, r.end())
			synctest.Wait()
		}
	})
}

// ---- A3: the timeout handler

// A3 (FLINK-38082): what the handler returns is final: no predicate sees it.
func TestHandlerOutcomeIsNotRetried(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, time.Millisecond),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					if in == "e" {
						return nil, errBroken // matches the exception predicate
					}
					return nil, nil // matches the result predicate
				})
			},
			opts: options(asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("er")
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "e#1 r#1", r.calls())
		require.Empty(t, r.outputs())
		require.Equal(t, "e", side.elements())
		require.Equal(t, errBroken, side.got()[0].Err)
		s := r.stats()
		require.Zero(t, s.Exhausted)
		require.EqualValues(t, 1, s.Completed)
	})
}

// A3: a handler that never returns cannot hang the element.
func TestHandlerThatNeverReturns(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		var handlerCtx context.Context
		r := newRig(t, m, setup{
			timeout: time.Second,
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					handlerCtx = ctx
					<-release // ignores its context
					return []string{"late"}, nil
				})
			},
			opts: options(asyncop.WithHandlerLimit(3 * time.Second)),
		})
		r.sendEach("a")
		r.advance(4*time.Second - 1)
		require.NoError(t, r.op.Err())
		require.NoError(t, handlerCtx.Err())
		r.advance(1)
		err := r.wait()
		require.ErrorContains(t, err, string(errHandlerLimit))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, handlerCtx.Err(), context.DeadlineExceeded)
		close(release)
		require.Empty(t, r.outputs())
		require.EqualValues(t, 1, r.stats().LateCompletions)
	})
}

// A3: with the default limit, too.
func TestHandlerHasALimitByDefault(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, nil // an answer at the limit or later, so not an answer
			})
		}})
		r.sendEach("a")
		r.advance(time.Second + 10*time.Second)
		require.ErrorContains(t, r.wait(), string(errHandlerLimit))
	})
}

// A3, A6: a handler that panics or calls runtime.Goexit leaves the element to its timeout.
func TestHandlerThatPanics(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		for name, handler := range map[string]func(){
			"panic":  func() { panic("in the handler") },
			"goexit": runtime.Goexit,
		} {
			r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
				return timeoutMethod(h, func(context.Context, string) ([]string, error) { handler(); return nil, nil })
			}})
			r.sendEach("a")
			r.advance(time.Second)
			err := r.wait()
			_, ok := errors.AsType[*asyncop.TimeoutError](err)
			require.True(t, ok, "%s: %v", name, err)
			p, ok := errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok, "%s: %v", name, err)
			require.NotEmpty(t, p.Stack)
		}
	})
}

// A3: handlers run off the loop, so a slow one holds up its own element only.
func TestSlowHandlerHoldsUpNobody(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
				time.Sleep(3 * time.Second)
				return []string{in + "!"}, nil
			})
		}})
		r.sendEach("ab") // both handlers run at once
		r.advance(2 * time.Second)
		r.sendEach("c")
		r.complete("c#1", "C")
		r.advance(2 * time.Second)
		require.Equal(t, m.pick("a!@4s b!@4s C@4s", "C@2s a!@4s b!@4s"), sortedEnds(r.outputTimes()))
	})
}

// sortedEnds makes handlers that end in the same instant, in whatever order, comparable.
func sortedEnds(history string) string {
	if history == "C@2s b!@4s a!@4s" {
		return "C@2s a!@4s b!@4s"
	}
	return history
}

// A3: the context of the handler is not that of the element, whose deadline has passed.
func TestHandlerContext(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second,
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					deadline, ok := ctx.Deadline()
					if ctx.Err() != nil || !ok || time.Until(deadline) != 2*time.Second {
						return nil, errors.New("wrong deadline")
					}
					if asyncop.AttemptFromContext(ctx) != 0 || ctx.Value(valueKey{}) != "of the operator" {
						return nil, errors.New("wrong values")
					}
					return []string{"ok"}, nil
				})
			},
			opts: options(asyncop.WithHandlerLimit(2 * time.Second)),
		})
		r.sendEach("a")
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "ok", r.outputs())
	})
}

// A3, A5: a handler that is running when the operator is cancelled is told so.
func TestCancelEndsTheHandlersContext(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var cause error
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				cause = ctx.Err()
				return nil, cause
			})
		}})
		r.sendEach("a")
		r.advance(time.Second)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		require.ErrorIs(t, cause, context.Canceled)
	})
}

// A3, Q2: timeouts fire on time although downstream takes nothing.
func TestTimeoutFiresUnderBackpressure(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var handledAt time.Duration
		r := newRig(t, m, setup{
			timeout: time.Second, blocked: true, opts: options(asyncop.WithBuffer(0)),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(context.Context, string) ([]string, error) {
					handledAt = h.now()
					return []string{"handled"}, nil
				})
			},
		})
		r.sendEach("ab")
		r.complete("a#1", "A") // stuck: nobody reads
		r.advance(time.Hour)
		require.Equal(t, time.Second, handledAt)
		r.unblock()
		require.NoError(t, r.end())
		require.Equal(t, "A handled", r.outputs())
	})
}

// ---- A3: no timeout, a huge one, an early one, and that of a single attempt

// A3: a timeout of 0, allowed without retry, is none.
func TestTimeoutZeroIsNone(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		for _, s := range []strategy{nil, strategies.NoRetry[string]()} {
			r := newRig(t, m, setup{strategy: s})
			r.sendEach("a")
			r.advance(1000 * time.Hour)
			r.complete("a#1", "A")
			require.NoError(t, r.end())
			require.Equal(t, "A", r.outputs())
		}
	})
}

// A3: the longest timeouts there are overflow nowhere.
func TestHugeTimeouts(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: math.MaxInt64, strategy: retryAll(3, time.Second),
			opts: options(asyncop.WithAttemptTimeout(math.MaxInt64), asyncop.WithHandlerLimit(math.MaxInt64)),
		})
		r.script("a#1", fails)
		r.advance(time.Second)
		r.sendEach("a")
		r.advance(time.Second)
		require.Equal(t, "a#1@1s a#2@2s", r.callTimes())
		r.advance(10000 * time.Hour)
		require.Equal(t, "a#1 a#2", r.calls())
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A", r.outputs())
	})
}

// A3: the longest limit of a handler, too.
func TestHugeHandlerLimit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, opts: options(asyncop.WithHandlerLimit(math.MaxInt64)),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(context.Context, string) ([]string, error) {
					time.Sleep(time.Hour)
					return []string{"handled"}, nil
				})
			},
		})
		r.sendEach("a")
		r.advance(2 * time.Hour)
		require.NoError(t, r.end())
		require.Equal(t, "handled", r.outputs())
	})
}

// A retry that could not start before the deadline is not scheduled: the element waits for its deadline. One that would
// start at the deadline is such a one (A5), one a nanosecond earlier is not.
func TestRetryPastTheDeadlineIsNotScheduled(t *testing.T) {
	for delay, want := range map[time.Duration]string{
		time.Second - 1: "a#1@0s a#2@999.999999ms",
		time.Second:     "a#1@0s",
		math.MaxInt64:   "a#1@0s",
	} {
		forEachClock(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, delay), wrap: handled})
			r.script("a#1", fails)
			r.sendEach("a")
			require.EqualValues(t, 1, r.stats().WaitingForRetry)
			r.advance(2 * time.Second)
			require.Equal(t, want, r.callTimes())
			require.Equal(t, "a!@1s", r.outputTimes())
			require.NoError(t, r.end())
		})
	}
}

// WithEarlyTimeout ends such an element at once, which frees its slot.
func TestEarlyTimeout(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: retryAll(9, 400*time.Millisecond), wrap: handled,
			opts: options(asyncop.WithEarlyTimeout()),
		})
		r.script("a#1", fails)
		r.script("a#2", fails)
		r.script("a#3", fails) // at 800 ms; the next would be at 1.2 s
		r.script("b#1", upper)
		r.sendEach("ab")
		r.advance(time.Second)
		require.Equal(t, m.pick("a!@800ms B@800ms", "B@0s a!@800ms"), r.outputTimes())
		s := r.stats()
		require.EqualValues(t, 1, s.Timeouts)
		require.Zero(t, s.WaitingForRetry)
	})
}

// The error says that it came early, with and without a handler, and only then.
func TestEarlyTimeoutError(t *testing.T) {
	panics := withHandler(func(context.Context, string) ([]string, error) { panic("no answer") })
	for name, wrap := range map[string]func(*hand) function{"no handler": nil, "handler": panics} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/", early), func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					s := setup{timeout: time.Second, strategy: retryAll(9, time.Hour), wrap: wrap}
					if early {
						s.opts = options(asyncop.WithEarlyTimeout())
					}
					r := newRig(t, m, s)
					r.script("a#1", fails)
					r.sendEach("a")
					r.advance(time.Second)
					timeout, ok := errors.AsType[*asyncop.TimeoutError](r.wait())
					require.True(t, ok)
					require.Equal(t, early, timeout.Early)
					if early {
						require.ErrorContains(t, timeout, "timed out early, after 1 attempt: no retry could start within 1s: last error: ")
					} else {
						require.ErrorContains(t, timeout, "timed out after 1s and 1 attempt: last error: ")
					}
				})
			})
		}
	}
}

// WithEarlyTimeout takes a retry that would start at the deadline for one that is too late, and no earlier one.
func TestEarlyTimeoutOfARetryAtTheDeadline(t *testing.T) {
	for delay, want := range map[time.Duration]string{time.Second: "a!@0s", time.Second - 1: "a!@1s"} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{
				timeout: time.Second, strategy: retryAll(9, delay), wrap: handled, opts: options(asyncop.WithEarlyTimeout()),
			})
			r.script("a#1", fails)
			r.sendEach("a")
			r.advance(time.Second)
			require.Equal(t, want, r.outputTimes())
			require.NoError(t, r.end())
		})
	}
}

// WithAttemptTimeout bounds each attempt; its outcome is an error like any other.
func TestAttemptTimeoutIsRetried(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(2, 500*time.Millisecond),
			opts: options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("a")
		r.advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@1.5s a#3@3s", r.callTimes())
		err := r.wait()
		timeout, ok := errors.AsType[*asyncop.AttemptTimeoutError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, &asyncop.AttemptTimeoutError{Limit: time.Second, Attempt: 3}, timeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 3, r.stats().AttemptTimeouts)
		require.Zero(t, r.stats().Timeouts)
		require.ErrorIs(t, r.call("a#1").ctx.Err(), context.DeadlineExceeded)
	})
}

// An attempt that was completed in time is not hit by its timer, nor is the one after it.
func TestAttemptTimeoutIsCancelledByTheCompletion(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(2, 500*time.Millisecond),
			opts: options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("a")
		r.advance(900 * time.Millisecond)
		r.fail("a#1", errBroken)
		r.advance(1400 * time.Millisecond) // 2.3 s; a#2 runs since 1.4 s
		require.Zero(t, r.stats().AttemptTimeouts)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A", r.outputs())
	})
}

// The total timeout comes first where both are due, and counts once.
func TestTotalTimeoutGoesBeforeTheAttemptTimeout(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: strategies.FixedDelay[string](9, 0).RetryIfException(predicates.HasException),
			wrap: handled, opts: options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("a")
		r.advance(3 * time.Second)
		require.Equal(t, "a#1", r.calls())
		require.Equal(t, "a!@1s", r.outputTimes())
		require.Zero(t, r.stats().AttemptTimeouts)
	})
}

// A3: the time of an element counts from its slot, also when the loop was away for somebody's logger just before.
func TestTimeoutCountsFromTheSlotAfterASlowLogger(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		slow := sync.OnceFunc(func() { time.Sleep(2 * time.Second) })
		r := newRig(t, m, setup{timeout: time.Second, opts: options(
			asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(breakingHandler(slow))))})
		r.script("a#1", fails)
		r.op.In() <- "a"
		r.op.In() <- "b"
		r.advance(3*time.Second - 1)
		require.Equal(t, "a#1@0s b#1@2s", r.callTimes())
		require.Zero(t, r.stats().Timeouts)
		r.advance(1)
		require.EqualValues(t, 1, r.stats().Timeouts)
	})
}

// The time of an attempt counts from its start: what the loop did for the element before is not part of it.
func TestAttemptTimeoutCountsFromTheCall(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			opts: options(asyncop.WithAttemptTimeout(10*time.Millisecond), asyncop.WithDropOnFailure()),
		})
		r.script("x#1", func(c *call) error { time.Sleep(5 * time.Millisecond); return upper(c) })
		r.op.In() <- "x"
		r.op.In() <- "a"
		r.advance(15*time.Millisecond - 1)
		require.Equal(t, "x#1@0s a#1@5ms", r.callTimes())
		require.Zero(t, r.stats().AttemptTimeouts)
		r.advance(1)
		require.EqualValues(t, 1, r.stats().AttemptTimeouts)
	})
}

// A handler has its whole limit, whatever the loop did in the turn before it.
func TestHandlerLimitCountsFromItsStart(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		slow := strategies.FixedDelay[string](0, 0).RetryIfResult(func([]string) bool {
			time.Sleep(50 * time.Millisecond)
			return false
		})
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: slow,
			opts: options(asyncop.WithHandlerLimit(20 * time.Millisecond)),
			wrap: withHandler(func(_ context.Context, in string) ([]string, error) {
				time.Sleep(10 * time.Millisecond)
				return []string{"late " + in}, nil
			}),
		})
		r.script("x#1", func(*call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.sendEach("ab")
		a := r.call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.op.In() <- "x" // and the loop is away from 0.5 to 1.4 s
		time.Sleep(100 * time.Millisecond)
		a.Complete("A")
		r.advance(860 * time.Millisecond)
		require.Equal(t, "A late b", r.outputs())
	})
}
