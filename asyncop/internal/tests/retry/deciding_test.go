package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Ten thousand elements fail once, and the strategy takes a second for every hundredth.
// The other elements are done as early as without these.
func TestSlowDecisionsHoldUpNobody(t *testing.T) {
	const elements = 10_000
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		slow := strategies.ReasonStrategyFunc[int](func(_ context.Context, a *predicates.Attempt[int]) (strategies.Action, error) {
			if a.Input.(int)%100 == 0 {
				time.Sleep(time.Second)
			}
			return strategies.RetryAfter(time.Millisecond), nil
		})
		p := strategies.ReasonAware(predicates.ByException[int](predicates.HasException, optest.SafeReason), slow)
		fn := asyncop.Func(func(ctx context.Context, in int, r asyncop.ResultFuture[int]) error {
			if asyncop.AttemptFromContext(ctx) == 1 {
				return optest.ErrBroken
			}
			r.Complete(in)
			return nil
		})
		op := asyncop.UnorderedWaitWithRetry(fn, time.Minute, elements, p)
		go func() {
			for i := range elements {
				op.In() <- i
			}
		}()
		took := map[time.Duration]int{}
		for range elements {
			in := (<-op.Out()).(int)
			at := time.Since(start)
			took[at]++
			require.Equal(t, in%100 == 0, at > time.Second, "%d after %v", in, at)
		}
		require.Equal(t, map[time.Duration]int{time.Millisecond: 9900, time.Second + time.Millisecond: 100}, took)
		close(op.In())
		require.NoError(t, op.Wait())
	})
}

// A deciding element has neither permit nor call: with one permit, another element runs
// meanwhile.
func TestDecidingTakesNoPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, after(time.Second, strategies.RetryAfter(0))),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		st := r.Stats()
		require.EqualValues(t, 1, st.Deciding)
		require.EqualValues(t, 1, st.Running)
		require.Equal(t, "a#1@0s b#1@0s", r.CallTimes())
		r.Complete("b#1", "B")
		r.Advance(time.Second)
		require.Equal(t, "a#1@0s b#1@0s a#2@1s", r.CallTimes())
		require.Zero(t, r.Stats().Deciding)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, m.Pick("A B", "B A"), r.Outputs())
	})
}

// Law A3: the timeout fires while the strategy decides. A later answer changes nothing.
func TestTimeoutWhileDeciding(t *testing.T) {
	stubborn := func(release chan struct{}) strategies.ReasonStrategy[string] {
		return optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) {
			<-release
			return strategies.RetryAfter(0), nil
		})
	}
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		side := optest.NewSideSink(false)
		var ended error
		s := optest.Decides(func(ctx context.Context, a *optest.View) (strategies.Action, error) {
			context.AfterFunc(ctx, func() { ended = ctx.Err() })
			return stubborn(release).Decide(ctx, a)
		})
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: optest.Because(optest.SafeReason, s), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Second - 1)
		require.Empty(t, side.Elements())
		r.Advance(1)
		require.Equal(t, "a", side.Elements())
		require.ErrorAs(t, side.Got()[0].Err, new(*asyncop.TimeoutError))
		require.ErrorIs(t, side.Got()[0].Err, optest.ErrBroken)
		require.ErrorIs(t, ended, context.DeadlineExceeded)
		r.Send("b") // reuses the memory of the slot
		close(release)
		r.Advance(0)
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Zero(t, r.Stats().LateCompletions)
		require.Zero(t, r.Stats().Deciding)
		optest.CheckBalance(t, r.Stats())
	})
}

// Law A5: a decision that comes at the deadline, or so shortly before it that no attempt
// can follow.
func TestDecisionShortOfTheDeadline(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		if m.Mock {
			return // the strategy sleeps
		}
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout:  time.Second,
			Strategy: optest.Because(optest.SafeReason, after(600*time.Millisecond, strategies.RetryAfter(400*time.Millisecond))),
			Opts:     optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Second)
		require.Equal(t, "a", side.Elements())
		require.Equal(t, time.Second, side.Got()[0].Elapsed)
		require.Equal(t, "a#1", r.Calls())
		require.NoError(t, r.End())
	})
}

// R30, R31: the timeout is 2.5 s. After 2 s, a delay of 1 s is cut to the remaining time,
// and no call follows. With early timeouts there is no wait at all.
func TestCappedDelay(t *testing.T) {
	for _, early := range []bool{false, true} {
		for _, reason := range []predicates.Reason{optest.SafeReason, alwaysReason} {
			optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				opts := optest.Options(asyncop.WithFailureSink(side.Take))
				if early {
					opts = append(opts, asyncop.WithEarlyTimeout())
				}
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: 2500 * time.Millisecond, Strategy: optest.Because(reason, optest.Always(true, strategies.RetryAfter(time.Second))), Opts: opts,
				})
				r.SendEach("a")
				want := time.Second + 1500*time.Millisecond
				if reason == optest.SafeReason {
					r.Advance(2 * time.Second)
					r.Fail("a#1", optest.ErrBroken)
				} else {
					r.Advance(2500*time.Millisecond - 1)
					r.Fail("a#1", optest.ErrBroken)
				}
				if early {
					want = map[predicates.Reason]time.Duration{
						optest.SafeReason: 2 * time.Second, alwaysReason: 2500*time.Millisecond - 1,
					}[reason]
				}
				r.Advance(time.Second)
				require.Equal(t, "a", side.Elements())
				require.Equal(t, want, side.Got()[0].Elapsed)
				require.Equal(t, "a#1", r.Calls())
				require.NoError(t, r.End())
			})
		}
	}
}

// Law A5: at the end of the input, an element whose strategy is deciding gets no further
// attempt, whatever the answer is. The answer is awaited, because it may translate the
// error.
func TestEndOfInputWhileDeciding(t *testing.T) {
	translated := errors.New("translated")
	for name, action := range map[string]strategies.Action{
		"yes":            strategies.RetryAfter(0),
		"no":             {},
		"yes, in words":  strategies.RetryAfter(0).WithError(translated),
		"no, translated": strategies.Action{}.WithError(translated),
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, after(time.Second, action)),
					Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
				})
				r.SendEach("a")
				r.Fail("a#1", optest.ErrBroken)
				r.EndInput()
				r.Advance(time.Second)
				require.Equal(t, "a", side.Elements())
				want := optest.ErrBroken
				if action.Err != nil {
					want = translated
				}
				require.Equal(t, want, side.Got()[0].Err)
				require.NoError(t, r.End())
				require.Equal(t, "a#1", r.Calls())
				require.EqualValues(t, 1, r.Stats().Exhausted)
			})
		})
	}
}

// With WithDrainRetries the element is retried.
func TestDrainWhileDeciding(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, after(time.Second, strategies.RetryAfter(time.Second))),
			Opts: optest.Options(asyncop.WithDrainRetries()),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.EndInput()
		r.Advance(2 * time.Second)
		r.Complete("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, "A@2s", r.OutputTimes())
	})
}

// Law F1: a cancel ends the strategy's context, and the element is abandoned.
func TestCancelWhileDeciding(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var ended error
		s := optest.Decides(func(ctx context.Context, _ *optest.View) (strategies.Action, error) {
			<-ctx.Done()
			ended = ctx.Err()
			return strategies.RetryAfter(0), nil
		})
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		err := r.Cut(optest.ErrTestOver)
		require.ErrorIs(t, err, optest.ErrTestOver)
		require.ErrorIs(t, ended, context.Canceled)
		require.Equal(t, "a#1", r.Calls())
		require.Equal(t, "a", side.Elements())
		require.EqualValues(t, 1, r.Stats().Abandoned)
		require.Zero(t, r.Stats().Deciding)
		optest.CheckBalance(t, r.Stats())
	})
}

// Law A6: an error or a panic of the strategy means no retry, joined to the element's
// error, on the loop or off it, and so does runtime.Goexit off the loop.
func TestStrategyThatFails(t *testing.T) {
	errStrategy := errors.New("of the strategy")
	for _, atOnce := range []bool{true, false} {
		breakages := optest.Breakages
		if atOnce {
			breakages = optest.Panics()
		}
		for _, b := range append(slices.Clip(breakages), optest.Breakage{Name: "error"}) {
			t.Run(fmt.Sprintf("%s/atOnce=%v", b.Name, atOnce), func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					s := optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) {
						if b.Breaks != nil {
							b.Breaks()
						}
						return strategies.RetryAfter(0), errStrategy
					})
					if atOnce {
						s = optest.Immediate(s)
					}
					side := optest.NewSideSink(false)
					r := optest.NewRig(t, m, optest.Setup{
						Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
					})
					r.SendEach("ab")
					r.Fail("a#1", optest.ErrBroken)
					require.Equal(t, "a", side.Elements())
					err := side.Got()[0].Err
					require.ErrorIs(t, err, optest.ErrBroken)
					if b.Breaks == nil {
						require.ErrorIs(t, err, errStrategy)
					} else {
						p, ok := errors.AsType[*asyncop.PanicError](err)
						require.True(t, ok, "%v", err)
						require.Equal(t, b.Value, p.Value)
						require.Contains(t, string(p.Stack), "deciding_test.go")
					}
					r.Complete("b#1", "B")
					require.NoError(t, r.End())
					require.Equal(t, "B", r.Outputs())
					require.Equal(t, "a#1 b#1", r.Calls())
					optest.CheckBalance(t, r.Stats())
				})
			})
		}
	}
}

// Law A6: if a decision fails, an error that is a typed nil is not inspected on its path.
func TestFailedDecisionOverABadError(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := optest.Immediate(optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) { panic("broken") }))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s), Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.SendEach("a")
		r.Fail("a#1", (*badError)(nil))
		require.NoError(t, r.End())
		require.EqualValues(t, 1, r.Stats().Dropped)
	})
}

type badError struct{ err error }

func (e *badError) Error() string { return e.err.Error() }
func (e *badError) Unwrap() error { return e.err }

// The results that a strategy decided about are emitted if it refuses a retry.
func TestResultsOutliveTheQuestion(t *testing.T) {
	for _, asFailure := range []bool{false, true} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			opts := optest.Options(asyncop.WithFailureSink(side.Take))
			if asFailure {
				opts = append(opts, asyncop.WithExhaustedAsFailure())
			}
			p := optest.Aware(
				predicates.ByResult(func([]string) bool { return true }, optest.UnsafeReason),
				after(time.Second, strategies.Action{}))
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: opts})
			r.SendEach("a")
			r.Complete("a#1", "A", "AA")
			r.Advance(time.Second)
			if asFailure {
				err := side.Got()[0].Err
				require.ErrorIs(t, err, asyncop.ErrRetriesExhausted)
				require.ErrorContains(t, err, "(refused: TEST_UNSAFE)")
			} else {
				require.Equal(t, "A@1s AA@1s", r.OutputTimes())
			}
			require.EqualValues(t, 1, r.Stats().Exhausted)
			require.NoError(t, r.End())
		})
	}
}

// The strategy gets the remaining time as of the outcome, after the time of earlier
// attempts.
func TestStrategySeesTheTimeThatIsLeft(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			var seen []time.Duration
			s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
				seen = append(seen, a.Elapsed, a.Remaining)
				return strategies.RetryAfter(time.Second), nil
			})
			if atOnce {
				s = optest.Immediate(s)
			}
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s)})
			r.SendEach("a")
			r.Advance(10 * time.Second)
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(20 * time.Second)
			r.Fail("a#2", optest.ErrBroken)
			require.Equal(t, []time.Duration{10 * time.Second, 50 * time.Second, 30 * time.Second, 30 * time.Second}, seen)
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		})
	}
}

// The context of a strategy ends with its answer, even if the strategy keeps the context.
func TestContextOfAStrategyEndsWithItsAnswer(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var kept context.Context
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason,
			optest.Decides(func(ctx context.Context, _ *optest.View) (strategies.Action, error) {
				kept = ctx
				return strategies.RetryAfter(time.Second), ctx.Err()
			}))})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		<-kept.Done()
		require.ErrorIs(t, kept.Err(), context.Canceled)
		require.EqualValues(t, 1, r.Stats().WaitingForRetry)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

// If the strategy has replaced the error of a retried attempt, a timeout reports the
// replacement as the last error.
func TestTimeoutTellsTheTranslatedError(t *testing.T) {
	translated := errors.New("translated")
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Hour).WithError(translated))),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Minute)
		err := r.Wait()
		require.ErrorIs(t, err, translated)
		require.NotErrorIs(t, err, optest.ErrBroken)
	})
}
