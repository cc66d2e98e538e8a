package retry_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// timeoutOf returns the *TimeoutError that the failure sink got for the first element.
func timeoutOf(t *testing.T, side *optest.SideSink) *asyncop.TimeoutError {
	t.Helper()
	require.NotEmpty(t, side.Got())
	require.Equal(t, "a", side.Got()[0].Element)
	timedOut, ok := side.Got()[0].Err.(*asyncop.TimeoutError) // as the operator made it
	require.True(t, ok)
	return timedOut
}

// Every stage × reason of an attempt that ended before the deadline × state of the
// element at the deadline × idempotence.
func TestTimeoutInDoubtAfterAnAttempt(t *testing.T) {
	at := map[string]struct {
		strategy strategies.ReasonStrategy[string]
		running  bool
	}{
		"in back-off": {optest.Always(true, strategies.RetryAfter(time.Hour)), false},
		"preparing": {optest.Always(true, strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})), false},
		"deciding": {after(time.Hour, strategies.Action{}), false},
		"running":  {optest.Always(true, strategies.RetryAfter(0)), true},
	}
	for where, tt := range at {
		for stage := range predicates.ResponseReceived + 1 {
			for _, reason := range []predicates.Reason{optest.UnsafeReason, optest.SafeReason, alwaysReason} {
				if reason == alwaysReason && where != "running" {
					continue // the strategy is not asked
				}
				for _, idempotent := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%v/%v/idempotent=%t", where, stage, reason, idempotent), func(t *testing.T) {
						optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
							side := optest.NewSideSink(false)
							r := optest.NewRig(t, m, optest.Setup{
								Timeout:  time.Minute,
								Strategy: optest.Because(reason, tt.strategy).IdempotentIf(func(any) bool { return idempotent }),
								Opts:     optest.Options(asyncop.WithFailureSink(side.Take)),
							})
							r.Script("a#1", func(c *optest.Call) error { predicates.ReportStage(c.Ctx, stage); return optest.ErrBroken })
							r.Script("a#2", func(c *optest.Call) error { predicates.ReportStage(c.Ctx, predicates.ClientDispatch); return nil })
							r.SendEach("a")
							r.Advance(time.Minute)
							inDoubt := tt.running || reason == optest.UnsafeReason && stage != predicates.ClientDispatch
							require.Equal(t, inDoubt, timeoutOf(t, side).InDoubt)
							require.Equal(t, inDoubt && !idempotent, timeoutOf(t, side).UnsafeToRepeat())
							require.NoError(t, r.End())
						})
					})
				}
			}
		}
	}
}

// An element that was never called is not in doubt. A first call that may still be
// running at the deadline is in doubt, whatever it has reported.
func TestTimeoutInDoubtOfAFirstAttempt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for stage := range predicates.ResponseReceived + 1 {
			side := optest.NewSideSink(false)
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
			r.Script("a#1", func(c *optest.Call) error { predicates.ReportStage(c.Ctx, stage); return nil })
			r.SendEach("a")
			r.Advance(time.Minute)
			require.True(t, timeoutOf(t, side).InDoubt)
			require.True(t, timeoutOf(t, side).UnsafeToRepeat())
		}
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(side.Take), asyncop.WithMaxConcurrentCalls(1)),
			Wrap: func(*optest.Hand) optest.Function {
				return asyncop.Blocking(func(_ context.Context, in string) (string, error) {
					require.NotEqual(t, "a", in)
					time.Sleep(time.Hour)
					return in, nil
				})
			},
		})
		r.SendEach("x")
		r.Advance(time.Second)
		r.SendEach("a")
		r.Advance(time.Minute)
		require.Len(t, side.Got(), 2)
		never, ok := side.Got()[1].Err.(*asyncop.TimeoutError) // as the operator made it
		require.True(t, ok)
		require.Zero(t, never.Attempts)
		require.False(t, never.InDoubt)
		require.False(t, never.UnsafeToRepeat())
		require.NoError(t, r.End())
		r.Advance(time.Hour)
	})
}

// For FLIP-232 strategies the reported stage decides, because their predicates give no
// proof. A predicate on results is the application's own statement.
func TestTimeoutInDoubtWithFlipStrategies(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(c *optest.Call) error
		want   bool
	}{
		"error": {optest.Fails, true},
		"error before it": {func(c *optest.Call) error {
			predicates.ReportStage(c.Ctx, predicates.ClientDispatch)
			return optest.ErrBroken
		}, false},
		"result": {optest.Empty, false},
		"error, then result": {func(c *optest.Call) error {
			return map[int]func(*optest.Call) error{1: optest.Fails, 2: optest.Empty}[c.Attempt](c)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Minute, Strategy: optest.RetryAll(1000, 40*time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
				})
				r.Answer = tt.answer
				r.SendEach("a")
				r.Advance(time.Minute)
				require.Equal(t, 2, timeoutOf(t, side).Attempts)
				require.Equal(t, tt.want, timeoutOf(t, side).InDoubt)
				require.NoError(t, r.End())
			})
		})
	}
}

// A call made before a restart stays in doubt for ever, even if the element was not
// called again since.
func TestTimeoutInDoubtAfterARestart(t *testing.T) {
	for choice := range asyncop.TimeSpent + 1 {
		t.Run(choice.String(), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				store := checkpointtest.NewMemoryStore()
				s := optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAgain(3, time.Hour), State: asyncop.State[string, string]{Retries: choice}}
				r := optest.NewCheckRig(t, m, s, store)
				r.Script("a#1", func(*optest.Call) error { return optest.ErrAgain })
				r.Send("x", "a")
				require.Equal(t, "x#1 a#1", r.Calls())
				s.Opts = append(s.Opts, asyncop.WithMaxConcurrentCalls(1)) // x has it
				var side *optest.SideSink
				for range 3 {
					r.Save()
					_ = r.Cut(optest.ErrBroken)
					store = store.Reopen()
					side = optest.NewSideSink(false)
					r = optest.NewCheckRig(t, m, optest.Setup{
						Timeout: s.Timeout, Strategy: s.Strategy, State: s.State, Opts: append(s.Opts[:1:1], asyncop.WithFailureSink(side.Take)),
					}, store)
					require.Equal(t, "x#1", r.Calls())
				}
				r.Advance(2 * time.Minute) // a's wait ends with the time it had, and leaves enough for an attempt
				for _, f := range side.Got() {
					timedOut, ok := f.Err.(*asyncop.TimeoutError) // as the operator made it
					require.True(t, ok)
					require.True(t, timedOut.InDoubt, f.Element)
				}
				require.Len(t, side.Got(), 2)
			})
		})
	}
}

// Law A6: user code decides whether a call is idempotent. If that code breaks, the call
// counts as not idempotent.
func TestTimeoutErrorUnsafeToRepeat_IdempotenceThatBreaks(t *testing.T) {
	for _, breaks := range []func(){func() { panic("broken") }, runtime.Goexit} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			r := optest.NewRig(t, m, optest.Setup{
				Timeout:  time.Minute,
				Strategy: optest.Because(optest.UnsafeReason, nil).IdempotentIf(func(any) bool { breaks(); return true }),
				Opts:     optest.Options(asyncop.WithFailureSink(side.Take)),
			})
			r.SendEach("a")
			r.Advance(time.Minute)
			require.True(t, timeoutOf(t, side).UnsafeToRepeat())
			require.NoError(t, r.End())
		})
	}
	require.False(t, (&asyncop.TimeoutError{}).UnsafeToRepeat())
	require.True(t, (&asyncop.TimeoutError{InDoubt: true}).UnsafeToRepeat())
}

// A failure reports the reason of its last outcome, and whether its call may have taken
// effect, so that its receiver can decide whether to send it again.
func TestFailureInDoubt(t *testing.T) {
	no := func(r predicates.Reason) *optest.Policy {
		return optest.Because(r, optest.Always(true, strategies.Action{}))
	}
	none := predicates.Reason{}
	for name, tt := range map[string]struct {
		strategy strategies.Retry[string]
		stage    predicates.Stage
		reason   predicates.Reason
		inDoubt  bool
		unsafe   bool
		text     string
	}{
		"refused, unsafe":     {no(optest.UnsafeReason), predicates.NetworkTime, optest.UnsafeReason, true, true, ", not retried after TEST_UNSAFE, which allows it for idempotent calls only (see strategies.Policy.Idempotent): broken"},
		"refused, safe":       {no(optest.SafeReason), predicates.NetworkTime, optest.SafeReason, false, false, ", not retried after TEST_SAFE: broken"},
		"refused, idempotent": {no(optest.UnsafeReason).Idempotent(), predicates.NetworkTime, optest.UnsafeReason, true, false, ", not retried after TEST_UNSAFE: broken"},
		"refused, not sent":   {no(optest.UnsafeReason), predicates.ClientDispatch, optest.UnsafeReason, false, false, ", not retried after TEST_UNSAFE: broken"},
		"asked elsewhere": {
			optest.Because(optest.UnsafeReason, after(0, strategies.Action{})), predicates.NetworkTime, optest.UnsafeReason, true, true,
			", not retried after TEST_UNSAFE, which allows it for idempotent calls only (see strategies.Policy.Idempotent): broken",
		},
		"rejected":                  {optest.Because(rejection, nil), predicates.NetworkTime, rejection, false, false, ": broken"},
		"rejected, without a stage": {optest.Because(rejection, nil), predicates.Unreported, rejection, false, false, ": broken"},
		"no reason": {
			strategies.ReasonAware(predicates.ByException[string](predicates.ErrorIs(optest.ErrTestOver), optest.UnsafeReason), nil),
			predicates.NetworkTime, none, true, true, ": broken",
		},
		"no predicate":           {onEmptyOnly(), predicates.NetworkTime, none, true, true, ": broken"},
		"no predicate, not sent": {onEmptyOnly(), predicates.ClientDispatch, none, false, false, ": broken"},
		"retries used up": {
			strategies.FixedDelay[string](0, 0).RetryIfException(predicates.ErrorIs(optest.ErrBroken)),
			predicates.NetworkTime, none, true, false, ": broken",
		},
		"no retries, and not sent": {strategies.NoRetry[string](), predicates.ClientDispatch, none, false, false, ": broken"},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				run := func(opts ...asyncop.Option) error {
					r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: tt.strategy, Opts: opts})
					r.Script("a#1", func(c *optest.Call) error { predicates.ReportStage(c.Ctx, tt.stage); return optest.ErrBroken })
					r.SendEach("a")
					return r.End()
				}
				side := optest.NewSideSink(false)
				require.NoError(t, run(asyncop.WithFailureSink(side.Take)))
				f := side.Got()[0]
				require.Equal(t, tt.reason, f.Reason)
				require.Equal(t, tt.inDoubt, f.InDoubt)
				require.Equal(t, tt.unsafe, f.UnsafeToRepeat())
				var failed *asyncop.ElementError
				require.ErrorAs(t, run(), &failed)
				require.Equal(t, tt.reason, failed.Reason)
				require.Equal(t, tt.inDoubt, failed.InDoubt)
				require.Equal(t, tt.unsafe, failed.UnsafeToRepeat())
				require.EqualError(t, failed, `asyncop: element "a" failed after 1 attempt in 0s`+tt.text)
			})
		})
	}
}

// Reason belongs to the last outcome, Reasons to the retries.
func TestFailureOfTheLastOutcome(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		byError := predicates.Classifiers(
			predicates.ByException[string](predicates.ErrorIs(optest.ErrBroken), optest.SafeReason),
			predicates.ByException[string](predicates.ErrorIs(optest.ErrAgain), optest.UnsafeReason))
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: strategies.ReasonAware(byError, nil), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.Script("a#1", optest.Fails) // retried
		r.Script("a#2", func(*optest.Call) error { return optest.ErrAgain })
		r.Script("b#1", optest.Fails)
		r.Script("b#2", func(*optest.Call) error { return optest.ErrTestOver }) // without a reason
		r.SendEach("ab")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "a b", side.Elements())
		a, b := side.Got()[0], side.Got()[1]
		require.Equal(t, optest.UnsafeReason, a.Reason)
		require.Equal(t, predicates.ReasonSet{}.With(optest.SafeReason), a.Reasons)
		require.Equal(t, predicates.Reason{}, b.Reason)
		require.Equal(t, predicates.ReasonSet{}.With(optest.SafeReason), b.Reasons)
	})
}

// A rejection concerns its own attempt only: an earlier attempt may still have taken
// effect.
func TestRejectedInDoubtOfAnEarlierAttempt(t *testing.T) {
	for first, inDoubt := range map[predicates.Reason]bool{optest.SafeReason: false, optest.UnsafeReason: true} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			classify := predicates.Classifiers(
				predicates.ByException[string](predicates.ErrorIs(optest.ErrBroken), first),
				predicates.ByException[string](predicates.ErrorIs(optest.ErrAgain), rejection))
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Minute, Strategy: optest.Aware(classify, optest.Always(true, strategies.RetryAfter(0))),
				Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
			})
			r.Script("a#1", optest.Fails)
			r.Script("a#2", func(*optest.Call) error { return optest.ErrAgain })
			r.SendEach("a")
			require.NoError(t, r.End())
			f := side.Got()[0]
			require.Equal(t, 2, f.Attempts)
			require.Equal(t, rejection, f.Reason)
			require.Equal(t, predicates.ReasonSet{}.With(first), f.Reasons)
			require.Equal(t, inDoubt, f.InDoubt)
			require.Equal(t, strategies.Final, f.NoRetryReason)
		})
	}
}

// An element that was cut off is in doubt if it was called and the outcome of the call is
// unknown.
func TestAbandonedInDoubt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.InEveryPhase(t, m, side)
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		side.Unblock()
		require.Error(t, r.Wait())
		inDoubt := map[string]bool{}
		for _, f := range side.Got() {
			inDoubt[f.Element] = f.InDoubt
		}
		require.Equal(t, map[string]bool{
			"handling": true, "failing": true, "done": true, "running1": true, "running2": true,
			"ready": true, "backoff": true, // their errors are no proof
			"fresh": false,
		}, inDoubt)
	})
}

// onEmptyOnly returns a strategy that examines results only.
func onEmptyOnly() strategies.Retry[string] {
	return strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult)
}

// Law A6: a call is not forgotten because the classifier broke.
func TestFailureInDoubtWhereThePredicateBreaks(t *testing.T) {
	for _, b := range optest.Breakages {
		exits := b.Name == "goexit" // ends the run
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			s := strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { b.Breaks(); return true })
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
			r.Answer = optest.Fails
			r.SendEach("a")
			require.Equal(t, exits, r.End() != nil)
			require.True(t, side.Got()[0].InDoubt)
		})
	}
}

// An element that was never called is not in doubt, even though its timeout handler has
// returned results.
func TestAbandonedResultsOfAHandler(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Wrap: optest.Handled, Blocked: true,
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(1), asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("ab")
		r.Advance(time.Minute)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		inDoubt := map[string]bool{}
		for _, f := range side.Got() {
			inDoubt[f.Element] = f.InDoubt
		}
		require.Equal(t, map[string]bool{"a": true, "b": false}, inDoubt)
	})
}

// The reason belongs to the last outcome, even if that outcome had no reason.
func TestAbandonedResultHasNoReason(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(0))), Blocked: true,
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.Take)),
		})
		r.Script("a#1", optest.Fails)
		r.Script("a#2", optest.Upper)
		r.SendEach("a")
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.Equal(t, predicates.Reason{}, side.Got()[0].Reason)
		require.Equal(t, predicates.ReasonSet{}.With(optest.SafeReason), side.Got()[0].Reasons)
	})
}
