package timeouts_test

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
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Law A3: an element that is never answered fails at its deadline and not before.
func TestTimeoutFailsTheElement(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second})
		r.SendEach("a")
		r.Advance(time.Second - 1)
		require.NoError(t, r.Op.Err())
		r.Advance(1)
		err := r.Wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "a", failed.Element)
		require.Equal(t, time.Second, failed.Elapsed)
		require.Equal(t, 1, failed.Attempts)
		timeout, ok := errors.AsType[*asyncop.TimeoutError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, time.Second, timeout.Limit)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 1, r.Stats().Timeouts)
	})
}

// Law A3: the timeout covers all attempts and back-offs together. The error unwraps to
// the error of the last attempt.
func TestTimeoutIsTheTotalOverAllAttempts(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(100, 300*time.Millisecond), Opts: optest.Options(asyncop.WithDropOnFailure()),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					return []string{in + "!"}, nil
				})
			},
		})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(5 * time.Second)
		require.Equal(t, "a#1@0s a#2@300ms a#3@600ms a#4@900ms", r.CallTimes())
		require.Equal(t, "a!@1s", r.OutputTimes())
	})
}

// Law A3: the error of a timed-out element unwraps to the error of its last attempt.
func TestTimeoutErrorTellsTheLastError(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, 600*time.Millisecond)})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(time.Second)
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		timeout, _ := errors.AsType[*asyncop.TimeoutError](err)
		require.Equal(t, 2, timeout.Attempts)
	})
}

// Law A3: the time begins when the element takes its slot. Waiting for a slot does not
// count.
func TestTimeoutCountsFromTheSlot(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled})
		r.SendEach("ab") // b waits in In
		r.Advance(900 * time.Millisecond)
		r.Complete("a#1", "A")
		r.Advance(2 * time.Second)
		require.Equal(t, "A@900ms b!@1.9s", r.OutputTimes())
	})
}

// Law A3: waiting for a permit counts, even if no attempt was made.
func TestTimeoutCountsWhileWaitingForAPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Opts:    optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithFailureSink(side.Take), asyncop.WithAttemptTimeout(time.Hour)),
			Wrap: func(h *optest.Hand) optest.Function { // keeps its permit
				return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					_ = h.AsyncInvoke(ctx, in, nil)
					time.Sleep(time.Minute)
					return "", nil
				})
			},
		})
		r.SendEach("ab")
		r.Advance(time.Second)
		require.Equal(t, "a b", side.Elements())
		require.Equal(t, "a#1", r.Calls())
		require.Zero(t, side.Got()[1].Attempts)
		require.Zero(t, side.Got()[1].FirstAttempt)
		require.NoError(t, r.End())
		r.Advance(time.Minute) // the call that ignored its context
	})
}

// Laws A3, T1: a completion that was posted by the deadline wins, even if the loop
// handles it later.
func TestCompletionAtTheDeadlineWins(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.Script("b#1", func(*optest.Call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.SendEach("a")
		a := r.Call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "b" // the loop is busy from 0.5 to 1.4 s
		time.Sleep(500 * time.Millisecond)
		a.Complete("A")
		r.Advance(400 * time.Millisecond)
		require.Equal(t, "A@1.4s", r.OutputTimes())
		require.Zero(t, r.Stats().Timeouts)
	})
}

// Law A3: a later completion loses.
func TestCompletionAfterTheDeadlineLoses(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled})
		r.SendEach("a")
		r.Advance(time.Second)
		r.Complete("a#1", "A")
		require.NoError(t, r.End())
		require.Equal(t, "a!@1s", r.OutputTimes())
	})
}

// Law A3: an outcome at the deadline that asks for a retry gets no retry, because the
// timeout decides.
func TestRetryableOutcomeAtTheDeadlineTimesOut(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, 0), Wrap: optest.Handled})
		r.Script("b#1", func(*optest.Call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.SendEach("a")
		a := r.Call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "b" // the loop is busy from 0.5 to 1.4 s
		time.Sleep(500 * time.Millisecond)
		a.CompleteExceptionally(optest.ErrBroken)
		r.Advance(450 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.Calls())
		require.Equal(t, "a!", r.Outputs())
	})
}

// A3 in every phase in which an element waits: running, in back-off, due for a retry but
// without a permit, never started.
func TestTimeoutEndsAnElementInEveryPhase(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, 100*time.Millisecond), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("rbxf")
		r.Fail("r#1", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken) // x runs; r and b are in back-off, f waits for its first call
		r.Advance(100 * time.Millisecond)
		require.Equal(t, "r#1 b#1 x#1", r.Calls())
		require.EqualValues(t, 2, r.Stats().WaitingForRetry)
		r.Advance(900 * time.Millisecond)
		require.NoError(t, r.End())
		require.Equal(t, "r#1 b#1 x#1", r.Calls())
		s := r.Stats()
		require.EqualValues(t, 4, s.Timeouts)
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Running)
		optest.CheckBalance(t, s)
	})
}

// Law A3: a timeout during the first back-off cancels the retry. The end of input then
// makes no call either (Flink leaks the handler and calls once more).
func TestTimeoutDuringTheFirstBackoffThenDrain(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		answer := make(chan struct{})
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, 600*time.Millisecond),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) {
					<-answer
					return []string{"handled"}, nil
				})
			},
		})
		r.SendEach("a")
		r.Advance(500 * time.Millisecond)
		r.Fail("a#1", optest.ErrBroken) // due at 1.1 s, after the deadline
		r.Advance(500 * time.Millisecond)
		r.EndInput() // while the handler runs
		r.Advance(time.Second)
		close(answer)
		require.NoError(t, r.End())
		require.Equal(t, "a#1", r.Calls())
		require.Equal(t, "handled", r.Outputs())
		s := r.Stats()
		require.Zero(t, s.WaitingForRetry)
		require.Zero(t, s.Retries())
	})
}

// Laws A3, A5: if a late loop finds a retry and the later deadline due, the deadline
// decides.
func TestDeadlineGoesBeforeARetryThatCameLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, 800*time.Millisecond), Wrap: optest.Handled})
		r.Script("a#1", optest.Fails) // due again at 800 ms
		r.Script("b#1", func(*optest.Call) error { time.Sleep(600 * time.Millisecond); return nil })
		r.SendEach("a")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "b" // the loop is busy from 500 ms to 1.1 s
		r.Advance(time.Second)
		require.Equal(t, "a#1 b#1", r.Calls())
		require.Equal(t, "a!@1.1s b!@1.5s", r.OutputTimes())
		require.NoError(t, r.End())
	})
}

// Law A3: the same applies to an attempt timeout: the element times out once, and the
// timer of the attempt is removed.
func TestDeadlineGoesBeforeAnAttemptTimeoutThatCameLate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, 0), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithAttemptTimeout(800 * time.Millisecond)),
		})
		r.Script("b#1", func(*optest.Call) error { time.Sleep(600 * time.Millisecond); return nil })
		r.SendEach("a")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "b" // the loop is busy from 500 ms to 1.1 s
		r.Advance(700 * time.Millisecond)
		require.Equal(t, "a#1 b#1", r.Calls())
		require.Equal(t, "a!@1.1s", r.OutputTimes())
		require.Zero(t, r.Stats().AttemptTimeouts)
		r.Advance(time.Minute)
		require.NoError(t, r.End())
	})
}

// Laws A2, A3: an attempt that user code on the loop completes in the step that ends the
// attempt ends its element once.
func TestCompletionInTheStepOfTheTimeout(t *testing.T) {
	for name, limit := range map[string]asyncop.Option{
		"of the element": asyncop.WithAttemptTimeout(time.Hour), "of the attempt": asyncop.WithAttemptTimeout(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var a *optest.Call
				s := strategies.FixedDelay[string](0, 0).RetryIfResult(func(results []string) bool {
					if results[0] == "B" {
						a.Complete("A") // after the loop has read the clock and the mailbox
					}
					return false
				})
				timeout := map[string]time.Duration{"of the element": time.Second, "of the attempt": time.Hour}[name]
				side := optest.NewSideSink(false)
				r := optest.NewRig(t, m, optest.Setup{Timeout: timeout, Strategy: s, Opts: optest.Options(limit, asyncop.WithFailureSink(side.Take))})
				r.Script("x#1", func(*optest.Call) error { time.Sleep(900 * time.Millisecond); return nil })
				r.SendEach("a")
				a = r.Call("a#1")
				time.Sleep(500 * time.Millisecond)
				r.SendEach("b")
				b := r.Call("b#1")
				r.Op.In() <- "x" // the loop is busy from 0.5 to 1.4 s
				b.Complete("B")
				r.Advance(900 * time.Millisecond)
				r.Complete("x#1", "X")
				require.NoError(t, r.End())
				require.Equal(t, "B X", r.Outputs())
				require.Equal(t, "a", side.Elements())
				require.EqualValues(t, 1, r.Stats().LateCompletions)
				require.Zero(t, r.Stats().Running)
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
}

// Law A3: the retry timer of an element that timed out never fires, whatever the next
// element in its slot does by then.
func TestTimeoutCancelsTheRetryTimer(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, 400*time.Millisecond), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.Script("a#1", optest.Fails)
		r.Script("a#2", optest.Fails)
		r.SendEach("ab") // a#3 would be due at 800 ms and runs until the deadline; b takes the slot at 1 s
		r.Advance(1100 * time.Millisecond)
		require.Equal(t, "a#1@0s a#2@400ms a#3@800ms b#1@1s", r.CallTimes())
		r.Advance(700 * time.Millisecond)
		require.Equal(t, "a#1 a#2 a#3 b#1", r.Calls())
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Equal(t, "a! B", r.Outputs())
	})
}

// A3 (FLINK-40456): a timeout that meets a retry scheduled at the same instant. The
// element must not hang.
func TestTimeoutRacesAJustScheduledRetry(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for _, delay := range []time.Duration{0, 1, 499 * time.Millisecond, 500 * time.Millisecond, 501 * time.Millisecond} {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(1, delay), Wrap: optest.Handled})
			r.Script("b#1", func(*optest.Call) error { time.Sleep(500 * time.Millisecond); return nil }) // until a's deadline
			r.SendEach("a")
			a := r.Call("a#1")
			time.Sleep(500 * time.Millisecond)
			r.Op.In() <- "b"
			a.CompleteExceptionally(optest.ErrBroken) // handled at 1 s: retry and timeout meet
			r.Advance(2 * time.Second)
			require.Equal(t, "a!@1s b!@1.5s", r.OutputTimes(), delay)
			require.Equal(t, "a#1 b#1", r.Calls(), delay)
			require.NoError(t, r.End())
			synctest.Wait()
		}
	})
}

// ---- A3: the timeout handler

// A3 (FLINK-38082): the results and the error of the handler are final. No predicate sees
// them.
func TestHandlerOutcomeIsNotRetried(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, time.Millisecond),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					if in == "e" {
						return nil, optest.ErrBroken // matches the exception predicate
					}
					return nil, nil // matches the result predicate
				})
			},
			Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("er")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "e#1 r#1", r.Calls())
		require.Empty(t, r.Outputs())
		require.Equal(t, "e", side.Elements())
		require.Equal(t, optest.ErrBroken, side.Got()[0].Err)
		s := r.Stats()
		require.Zero(t, s.Exhausted)
		require.EqualValues(t, 1, s.Completed)
	})
}

// Law A3: a handler that never returns cannot hang the element.
func TestHandlerThatNeverReturns(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		var handlerCtx context.Context
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					handlerCtx = ctx
					<-release // ignores its context
					return []string{"late"}, nil
				})
			},
			Opts: optest.Options(asyncop.WithHandlerLimit(3 * time.Second)),
		})
		r.SendEach("a")
		r.Advance(4*time.Second - 1)
		require.NoError(t, r.Op.Err())
		require.NoError(t, handlerCtx.Err())
		r.Advance(1)
		err := r.Wait()
		require.ErrorContains(t, err, string(optest.ErrHandlerLimit))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, handlerCtx.Err(), context.DeadlineExceeded)
		close(release)
		require.Empty(t, r.Outputs())
		require.EqualValues(t, 1, r.Stats().LateCompletions)
	})
}

// Law A3: the same applies with the default limit.
func TestHandlerHasALimitByDefault(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, nil // an answer at the limit or later, so not an answer
			})
		}})
		r.SendEach("a")
		r.Advance(time.Second + 10*time.Second)
		require.ErrorContains(t, r.Wait(), string(optest.ErrHandlerLimit))
	})
}

// Laws A3, A6: if a handler panics or calls runtime.Goexit, the element ends with its
// timeout.
func TestHandlerThatPanics(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for name, handler := range map[string]func(){
			"panic":  func() { panic("in the handler") },
			"goexit": runtime.Goexit,
		} {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) { handler(); return nil, nil })
			}})
			r.SendEach("a")
			r.Advance(time.Second)
			err := r.Wait()
			_, ok := errors.AsType[*asyncop.TimeoutError](err)
			require.True(t, ok, "%s: %v", name, err)
			p, ok := errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok, "%s: %v", name, err)
			require.NotEmpty(t, p.Stack)
		}
	})
}

// Law A3: handlers run off the loop, so a slow handler delays only its own element.
func TestSlowHandlerHoldsUpNobody(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
				time.Sleep(3 * time.Second)
				return []string{in + "!"}, nil
			})
		}})
		r.SendEach("ab") // both handlers run at once
		r.Advance(2 * time.Second)
		r.SendEach("c")
		r.Complete("c#1", "C")
		r.Advance(2 * time.Second)
		require.Equal(t, m.Pick("a!@4s b!@4s C@4s", "C@2s a!@4s b!@4s"), sortedEnds(r.OutputTimes()))
	})
}

// sortedEnds makes histories comparable whose handlers end at the same instant, in any
// order.
func sortedEnds(history string) string {
	if history == "C@2s b!@4s a!@4s" {
		return "C@2s a!@4s b!@4s"
	}
	return history
}

// Law A3: the context of the handler differs from the context of the element, whose
// deadline has passed.
func TestHandlerContext(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					deadline, ok := ctx.Deadline()
					if ctx.Err() != nil || !ok || time.Until(deadline) != 2*time.Second {
						return nil, errors.New("wrong deadline")
					}
					if asyncop.AttemptFromContext(ctx) != 0 || ctx.Value(optest.ValueKey{}) != "of the operator" {
						return nil, errors.New("wrong values")
					}
					return []string{"ok"}, nil
				})
			},
			Opts: optest.Options(asyncop.WithHandlerLimit(2 * time.Second)),
		})
		r.SendEach("a")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "ok", r.Outputs())
	})
}

// Laws A3, A5: a cancel of the operator ends the context of a running handler.
func TestCancelEndsTheHandlersContext(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var cause error
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				cause = ctx.Err()
				return nil, cause
			})
		}})
		r.SendEach("a")
		r.Advance(time.Second)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.ErrorIs(t, cause, context.Canceled)
	})
}

// Laws A3, Q2: timeouts fire on time although downstream is blocked.
func TestTimeoutFiresUnderBackpressure(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var handledAt time.Duration
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0)),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) {
					handledAt = h.Now()
					return []string{"handled"}, nil
				})
			},
		})
		r.SendEach("ab")
		r.Complete("a#1", "A") // blocked by downstream
		r.Advance(time.Hour)
		require.Equal(t, time.Second, handledAt)
		r.Unblock()
		require.NoError(t, r.End())
		require.Equal(t, "A handled", r.Outputs())
	})
}

// ---- A3: no timeout, a huge timeout, an early timeout, and the timeout of a single
// attempt

// Law A3: a timeout of 0, allowed without retry, means no timeout.
func TestTimeoutZeroIsNone(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		for _, s := range []optest.Strategy{nil, strategies.NoRetry[string]()} {
			r := optest.NewRig(t, m, optest.Setup{Strategy: s})
			r.SendEach("a")
			r.Advance(1000 * time.Hour)
			r.Complete("a#1", "A")
			require.NoError(t, r.End())
			require.Equal(t, "A", r.Outputs())
		}
	})
}

// Law A3: the longest possible timeouts do not overflow.
func TestHugeTimeouts(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: math.MaxInt64, Strategy: optest.RetryAll(3, time.Second),
			Opts: optest.Options(asyncop.WithAttemptTimeout(math.MaxInt64), asyncop.WithHandlerLimit(math.MaxInt64)),
		})
		r.Script("a#1", optest.Fails)
		r.Advance(time.Second)
		r.SendEach("a")
		r.Advance(time.Second)
		require.Equal(t, "a#1@1s a#2@2s", r.CallTimes())
		r.Advance(10000 * time.Hour)
		require.Equal(t, "a#1 a#2", r.Calls())
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A", r.Outputs())
	})
}

// Law A3: the longest possible limit of a handler does not overflow either.
func TestWithHandlerLimit_Huge(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Opts: optest.Options(asyncop.WithHandlerLimit(math.MaxInt64)),
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) {
					time.Sleep(time.Hour)
					return []string{"handled"}, nil
				})
			},
		})
		r.SendEach("a")
		r.Advance(2 * time.Hour)
		require.NoError(t, r.End())
		require.Equal(t, "handled", r.Outputs())
	})
}

// A retry that could not start before the deadline is not scheduled, and the element
// waits for its deadline. This includes a retry that would start exactly at the deadline
// (law A5), but not a retry a nanosecond earlier.
func TestRetryPastTheDeadlineIsNotScheduled(t *testing.T) {
	for delay, want := range map[time.Duration]string{
		time.Second - 1: "a#1@0s a#2@999.999999ms",
		time.Second:     "a#1@0s",
		math.MaxInt64:   "a#1@0s",
	} {
		optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, delay), Wrap: optest.Handled})
			r.Script("a#1", optest.Fails)
			r.SendEach("a")
			require.EqualValues(t, 1, r.Stats().WaitingForRetry)
			r.Advance(2 * time.Second)
			require.Equal(t, want, r.CallTimes())
			require.Equal(t, "a!@1s", r.OutputTimes())
			require.NoError(t, r.End())
		})
	}
}

// WithEarlyTimeout ends such an element immediately, and its slot becomes free.
func TestWithEarlyTimeout(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.RetryAll(9, 400*time.Millisecond), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithEarlyTimeout()),
		})
		r.Script("a#1", optest.Fails)
		r.Script("a#2", optest.Fails)
		r.Script("a#3", optest.Fails) // at 800 ms; the next would be at 1.2 s
		r.Script("b#1", optest.Upper)
		r.SendEach("ab")
		r.Advance(time.Second)
		require.Equal(t, m.Pick("a!@800ms B@800ms", "B@0s a!@800ms"), r.OutputTimes())
		s := r.Stats()
		require.EqualValues(t, 1, s.Timeouts)
		require.Zero(t, s.WaitingForRetry)
	})
}

// The error reports whether the timeout was early, with and without a handler.
func TestWithEarlyTimeout_Error(t *testing.T) {
	panics := optest.WithHandler(func(context.Context, string) ([]string, error) { panic("no answer") })
	for name, wrap := range map[string]func(*optest.Hand) optest.Function{"no handler": nil, "handler": panics} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/", early), func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					s := optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, time.Hour), Wrap: wrap}
					if early {
						s.Opts = optest.Options(asyncop.WithEarlyTimeout())
					}
					r := optest.NewRig(t, m, s)
					r.Script("a#1", optest.Fails)
					r.SendEach("a")
					r.Advance(time.Second)
					timeout, ok := errors.AsType[*asyncop.TimeoutError](r.Wait())
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

// WithEarlyTimeout treats a retry that would start at the deadline as too late, but not
// an earlier retry.
func TestWithEarlyTimeout_RetryAtTheDeadline(t *testing.T) {
	for delay, want := range map[time.Duration]string{time.Second: "a!@0s", time.Second - 1: "a!@1s"} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Second, Strategy: optest.RetryAll(9, delay), Wrap: optest.Handled, Opts: optest.Options(asyncop.WithEarlyTimeout()),
			})
			r.Script("a#1", optest.Fails)
			r.SendEach("a")
			r.Advance(time.Second)
			require.Equal(t, want, r.OutputTimes())
			require.NoError(t, r.End())
		})
	}
}

// WithAttemptTimeout bounds each attempt; its outcome is an error like any other.
func TestAttemptTimeoutIsRetried(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(2, 500*time.Millisecond),
			Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("a")
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@1.5s a#3@3s", r.CallTimes())
		err := r.Wait()
		timeout, ok := errors.AsType[*asyncop.AttemptTimeoutError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, &asyncop.AttemptTimeoutError{Limit: time.Second, Attempt: 3}, timeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 3, r.Stats().AttemptTimeouts)
		require.Zero(t, r.Stats().Timeouts)
		require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.DeadlineExceeded)
	})
}

// The timer of an attempt that was completed in time affects neither this attempt nor the
// next.
func TestAttemptTimeoutIsCancelledByTheCompletion(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(2, 500*time.Millisecond),
			Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("a")
		r.Advance(900 * time.Millisecond)
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(1400 * time.Millisecond) // 2.3 s; a#2 runs since 1.4 s
		require.Zero(t, r.Stats().AttemptTimeouts)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A", r.Outputs())
	})
}

// If both are due, the total timeout goes first and counts once.
func TestTotalTimeoutGoesBeforeTheAttemptTimeout(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: strategies.FixedDelay[string](9, 0).RetryIfException(predicates.HasException),
			Wrap: optest.Handled, Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("a")
		r.Advance(3 * time.Second)
		require.Equal(t, "a#1", r.Calls())
		require.Equal(t, "a!@1s", r.OutputTimes())
		require.Zero(t, r.Stats().AttemptTimeouts)
	})
}

// Law A3: the time of an element counts from its slot, even if a user's logger blocked
// the loop just before.
func TestTimeoutCountsFromTheSlotAfterASlowLogger(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		slow := sync.OnceFunc(func() { time.Sleep(2 * time.Second) })
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(
			asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(optest.BreakingHandler(slow))))})
		r.Script("a#1", optest.Fails)
		r.Op.In() <- "a"
		r.Op.In() <- "b"
		r.Advance(3*time.Second - 1)
		require.Equal(t, "a#1@0s b#1@2s", r.CallTimes())
		require.Zero(t, r.Stats().Timeouts)
		r.Advance(1)
		require.EqualValues(t, 1, r.Stats().Timeouts)
	})
}

// The time of an attempt counts from its start. Earlier work of the loop for the element
// is not included.
func TestAttemptTimeoutCountsFromTheCall(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Opts: optest.Options(asyncop.WithAttemptTimeout(10*time.Millisecond), asyncop.WithDropOnFailure()),
		})
		r.Script("x#1", func(c *optest.Call) error { time.Sleep(5 * time.Millisecond); return optest.Upper(c) })
		r.Op.In() <- "x"
		r.Op.In() <- "a"
		r.Advance(15*time.Millisecond - 1)
		require.Equal(t, "x#1@0s a#1@5ms", r.CallTimes())
		require.Zero(t, r.Stats().AttemptTimeouts)
		r.Advance(1)
		require.EqualValues(t, 1, r.Stats().AttemptTimeouts)
	})
}

// A handler has its full limit, whatever the loop did earlier in the step.
func TestWithHandlerLimit_CountsFromTheStart(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		slow := strategies.FixedDelay[string](0, 0).RetryIfResult(func([]string) bool {
			time.Sleep(50 * time.Millisecond)
			return false
		})
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: slow,
			Opts: optest.Options(asyncop.WithHandlerLimit(20 * time.Millisecond)),
			Wrap: optest.WithHandler(func(_ context.Context, in string) ([]string, error) {
				time.Sleep(10 * time.Millisecond)
				return []string{"late " + in}, nil
			}),
		})
		r.Script("x#1", func(*optest.Call) error { time.Sleep(900 * time.Millisecond); return nil })
		r.SendEach("ab")
		a := r.Call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "x" // the loop is busy from 0.5 to 1.4 s
		time.Sleep(100 * time.Millisecond)
		a.Complete("A")
		r.Advance(860 * time.Millisecond)
		require.Equal(t, "A late b", r.Outputs())
	})
}
