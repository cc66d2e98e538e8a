package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Ten thousand elements fail once; the strategy takes a second over every hundredth. All others are done when they would
// have been without those.
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
		p := strategies.ReasonAware(predicates.ByException[int](predicates.HasException, safeReason), slow)
		fn := asyncop.Func(func(ctx context.Context, in int, r asyncop.ResultFuture[int]) error {
			if asyncop.AttemptFromContext(ctx) == 1 {
				return errBroken
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

// A deciding element has neither permit nor call: with one permit, another element runs meanwhile.
func TestDecidingTakesNoPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, after(time.Second, strategies.RetryAfter(0))),
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		st := r.stats()
		require.EqualValues(t, 1, st.Deciding)
		require.EqualValues(t, 1, st.Running)
		require.Equal(t, "a#1@0s b#1@0s", r.callTimes())
		r.complete("b#1", "B")
		r.advance(time.Second)
		require.Equal(t, "a#1@0s b#1@0s a#2@1s", r.callTimes())
		require.Zero(t, r.stats().Deciding)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, m.pick("A B", "B A"), r.outputs())
	})
}

// A3: the timeout comes while the strategy thinks; its answer, if there is one, changes nothing.
func TestTimeoutWhileDeciding(t *testing.T) {
	stubborn := func(release chan struct{}) strategies.ReasonStrategy[string] {
		return decides(func(context.Context, *view) (strategies.Action, error) {
			<-release
			return strategies.RetryAfter(0), nil
		})
	}
	forEachClock(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		side := newSideSink(false)
		var ended error
		s := decides(func(ctx context.Context, a *view) (strategies.Action, error) {
			context.AfterFunc(ctx, func() { ended = ctx.Err() })
			return stubborn(release).Decide(ctx, a)
		})
		r := newRig(t, m, setup{
			timeout: time.Second, strategy: because(safeReason, s), opts: options(asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(time.Second - 1)
		require.Empty(t, side.elements())
		r.advance(1)
		require.Equal(t, "a", side.elements())
		require.ErrorAs(t, side.got()[0].Err, new(*asyncop.TimeoutError))
		require.ErrorIs(t, side.got()[0].Err, errBroken)
		require.ErrorIs(t, ended, context.DeadlineExceeded)
		r.send("b") // takes the slot's memory again
		close(release)
		r.advance(0)
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Zero(t, r.stats().LateCompletions)
		require.Zero(t, r.stats().Deciding)
		checkBalance(t, r.stats())
	})
}

// A5: a decision that comes with, or before, so little time that no attempt can follow.
func TestDecisionShortOfTheDeadline(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		if m.mock {
			return // the strategy sleeps
		}
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout:  time.Second,
			strategy: because(safeReason, after(600*time.Millisecond, strategies.RetryAfter(400*time.Millisecond))),
			opts:     options(asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(time.Second)
		require.Equal(t, "a", side.elements())
		require.Equal(t, time.Second, side.got()[0].Elapsed)
		require.Equal(t, "a#1", r.calls())
		require.NoError(t, r.end())
	})
}

// R30, R31: 2 s into 2.5 s, a delay of 1 s is cut to what is left, and no call follows; early timeouts do not even wait.
func TestCappedDelay(t *testing.T) {
	for _, early := range []bool{false, true} {
		for _, reason := range []predicates.Reason{safeReason, alwaysReason} {
			forEachClock(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				opts := options(asyncop.WithFailureSink(side.take))
				if early {
					opts = append(opts, asyncop.WithEarlyTimeout())
				}
				r := newRig(t, m, setup{
					timeout: 2500 * time.Millisecond, strategy: because(reason, always(true, strategies.RetryAfter(time.Second))), opts: opts,
				})
				r.sendEach("a")
				want := time.Second + 1500*time.Millisecond
				if reason == safeReason {
					r.advance(2 * time.Second)
					r.fail("a#1", errBroken)
				} else {
					r.advance(2500*time.Millisecond - 1)
					r.fail("a#1", errBroken)
				}
				if early {
					want = map[predicates.Reason]time.Duration{
						safeReason: 2 * time.Second, alwaysReason: 2500*time.Millisecond - 1,
					}[reason]
				}
				r.advance(time.Second)
				require.Equal(t, "a", side.elements())
				require.Equal(t, want, side.got()[0].Elapsed)
				require.Equal(t, "a#1", r.calls())
				require.NoError(t, r.end())
			})
		}
	}
}

// A5: at the end of the input, an element whose strategy is thinking gets no further attempt, whatever the answer is; the
// answer is awaited, since it may translate the error.
func TestEndOfInputWhileDeciding(t *testing.T) {
	translated := errors.New("translated")
	for name, action := range map[string]strategies.Action{
		"yes":            strategies.RetryAfter(0),
		"no":             {},
		"yes, in words":  strategies.RetryAfter(0).WithError(translated),
		"no, translated": strategies.Action{}.WithError(translated),
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				r := newRig(t, m, setup{
					timeout: time.Minute, strategy: because(safeReason, after(time.Second, action)),
					opts: options(asyncop.WithFailureSink(side.take)),
				})
				r.sendEach("a")
				r.fail("a#1", errBroken)
				r.endInput()
				r.advance(time.Second)
				require.Equal(t, "a", side.elements())
				want := errBroken
				if action.Err != nil {
					want = translated
				}
				require.Equal(t, want, side.got()[0].Err)
				require.NoError(t, r.end())
				require.Equal(t, "a#1", r.calls())
				require.EqualValues(t, 1, r.stats().Exhausted)
			})
		})
	}
}

// With WithDrainRetries it is retried.
func TestDrainWhileDeciding(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, after(time.Second, strategies.RetryAfter(time.Second))),
			opts: options(asyncop.WithDrainRetries()),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.endInput()
		r.advance(2 * time.Second)
		r.complete("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, "A@2s", r.outputTimes())
	})
}

// F1: a cancel ends the strategy's context, and the element is abandoned.
func TestCancelWhileDeciding(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var ended error
		s := decides(func(ctx context.Context, _ *view) (strategies.Action, error) {
			<-ctx.Done()
			ended = ctx.Err()
			return strategies.RetryAfter(0), nil
		})
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, s), opts: options(asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		err := r.cut(errTestOver)
		require.ErrorIs(t, err, errTestOver)
		require.ErrorIs(t, ended, context.Canceled)
		require.Equal(t, "a#1", r.calls())
		require.Equal(t, "a", side.elements())
		require.EqualValues(t, 1, r.stats().Abandoned)
		require.Zero(t, r.stats().Deciding)
		checkBalance(t, r.stats())
	})
}

// A6: an error, a panic or a Goexit of the strategy means no retry, joined to the element's error, on the loop or off it.
func TestStrategyThatFails(t *testing.T) {
	errStrategy := errors.New("of the strategy")
	for _, atOnce := range []bool{true, false} {
		for _, b := range append(breakages[:len(breakages):len(breakages)], struct {
			name   string
			breaks func()
			value  any
		}{name: "error"}) {
			t.Run(fmt.Sprintf("%s/atOnce=%v", b.name, atOnce), func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					s := decides(func(context.Context, *view) (strategies.Action, error) {
						if b.breaks != nil {
							b.breaks()
						}
						return strategies.RetryAfter(0), errStrategy
					})
					if atOnce {
						s = immediate(s)
					}
					side := newSideSink(false)
					r := newRig(t, m, setup{
						timeout: time.Minute, strategy: because(safeReason, s), opts: options(asyncop.WithFailureSink(side.take)),
					})
					r.sendEach("ab")
					r.fail("a#1", errBroken)
					require.Equal(t, "a", side.elements())
					err := side.got()[0].Err
					require.ErrorIs(t, err, errBroken)
					if b.breaks == nil {
						require.ErrorIs(t, err, errStrategy)
					} else {
						p, ok := errors.AsType[*asyncop.PanicError](err)
						require.True(t, ok, "%v", err)
						require.Equal(t, b.value, p.Value)
						require.Contains(t, string(p.Stack), "reason_deciding_test.go")
					}
					r.complete("b#1", "B")
					require.NoError(t, r.end())
					require.Equal(t, "B", r.outputs())
					require.Equal(t, "a#1 b#1", r.calls())
					checkBalance(t, r.stats())
				})
			})
		}
	}
}

// A6: a typed nil as an error: nothing looks into it on the way from a failed decision.
func TestFailedDecisionOverABadError(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		s := immediate(decides(func(context.Context, *view) (strategies.Action, error) { panic("broken") }))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason, s), opts: options(asyncop.WithDropOnFailure())})
		r.sendEach("a")
		r.fail("a#1", (*badError)(nil))
		require.NoError(t, r.end())
		require.EqualValues(t, 1, r.stats().Dropped)
	})
}

type badError struct{ err error }

func (e *badError) Error() string { return e.err.Error() }
func (e *badError) Unwrap() error { return e.err }

// The results that a strategy was asked about are emitted if it says no.
func TestResultsOutliveTheQuestion(t *testing.T) {
	for _, asFailure := range []bool{false, true} {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			opts := options(asyncop.WithFailureSink(side.take))
			if asFailure {
				opts = append(opts, asyncop.WithExhaustedAsFailure())
			}
			p := aware(
				predicates.ByResult(func([]string) bool { return true }, unsafeReason),
				after(time.Second, strategies.Action{}))
			r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: opts})
			r.sendEach("a")
			r.complete("a#1", "A", "AA")
			r.advance(time.Second)
			if asFailure {
				err := side.got()[0].Err
				require.ErrorIs(t, err, asyncop.ErrRetriesExhausted)
				require.ErrorContains(t, err, "(refused: TEST_UNSAFE)")
			} else {
				require.Equal(t, "A@1s AA@1s", r.outputTimes())
			}
			require.EqualValues(t, 1, r.stats().Exhausted)
			require.NoError(t, r.end())
		})
	}
}

// The time that is left is told as of the outcome, and counts the attempts before it.
func TestStrategySeesTheTimeThatIsLeft(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		forEachMode(t, func(t *testing.T, m mode) {
			var seen []time.Duration
			s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
				seen = append(seen, a.Elapsed, a.Remaining)
				return strategies.RetryAfter(time.Second), nil
			})
			if atOnce {
				s = immediate(s)
			}
			r := newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason, s)})
			r.sendEach("a")
			r.advance(10 * time.Second)
			r.fail("a#1", errBroken)
			r.advance(20 * time.Second)
			r.fail("a#2", errBroken)
			require.Equal(t, []time.Duration{10 * time.Second, 50 * time.Second, 30 * time.Second, 30 * time.Second}, seen)
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		})
	}
}

// What a strategy keeps of its context has ended with its answer.
func TestContextOfAStrategyEndsWithItsAnswer(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var kept context.Context
		r := newRig(t, m, setup{timeout: time.Minute, strategy: because(safeReason,
			decides(func(ctx context.Context, _ *view) (strategies.Action, error) {
				kept = ctx
				return strategies.RetryAfter(time.Second), ctx.Err()
			}))})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		<-kept.Done()
		require.ErrorIs(t, kept.Err(), context.Canceled)
		require.EqualValues(t, 1, r.stats().WaitingForRetry)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// The error that takes the place of a retried attempt's is the last one that a timeout tells.
func TestTimeoutTellsTheTranslatedError(t *testing.T) {
	translated := errors.New("translated")
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, always(true, strategies.RetryAfter(time.Hour).WithError(translated))),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		r.advance(time.Minute)
		err := r.wait()
		require.ErrorIs(t, err, translated)
		require.NotErrorIs(t, err, errBroken)
	})
}
