package asyncop_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// timeoutOf returns the *TimeoutError that the failure sink got for the first element.
func timeoutOf(t *testing.T, side *sideSink) *asyncop.TimeoutError {
	t.Helper()
	require.NotEmpty(t, side.got())
	require.Equal(t, "a", side.got()[0].Element)
	timedOut, ok := side.got()[0].Err.(*asyncop.TimeoutError) // as the operator made it
	require.True(t, ok)
	return timedOut
}

// Every stage × reason of an attempt that ended before the deadline × what the element does at the deadline × idempotence.
func TestTimeoutInDoubtAfterAnAttempt(t *testing.T) {
	at := map[string]struct {
		strategy strategies.ReasonStrategy[string]
		running  bool
	}{
		"in back-off": {always(true, strategies.RetryAfter(time.Hour)), false},
		"preparing": {always(true, strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})), false},
		"deciding": {after(time.Hour, strategies.Action{}), false},
		"running":  {always(true, strategies.RetryAfter(0)), true},
	}
	for where, tt := range at {
		for stage := range predicates.ResponseReceived + 1 {
			for _, reason := range []predicates.Reason{unsafeReason, safeReason, alwaysReason} {
				if reason == alwaysReason && where != "running" {
					continue // the strategy is not asked
				}
				for _, idempotent := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%v/%v/idempotent=%t", where, stage, reason, idempotent), func(t *testing.T) {
						forEachMode(t, func(t *testing.T, m mode) {
							side := newSideSink(false)
							r := newRig(t, m, setup{
								timeout:  time.Minute,
								strategy: because(reason, tt.strategy).IdempotentIf(func(any) bool { return idempotent }),
								opts:     options(asyncop.WithFailureSink(side.take)),
							})
							r.script("a#1", func(c *call) error { predicates.ReportStage(c.ctx, stage); return errBroken })
							r.script("a#2", func(c *call) error { predicates.ReportStage(c.ctx, predicates.ClientDispatch); return nil })
							r.sendEach("a")
							r.advance(time.Minute)
							inDoubt := tt.running || reason == unsafeReason && stage != predicates.ClientDispatch
							require.Equal(t, inDoubt, timeoutOf(t, side).InDoubt)
							require.Equal(t, inDoubt && !idempotent, timeoutOf(t, side).Ambiguous())
							require.NoError(t, r.end())
						})
					})
				}
			}
		}
	}
}

// What was never called is not in doubt; what a first call may be doing at the deadline is, whatever it has reported.
func TestTimeoutInDoubtOfAFirstAttempt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		for stage := range predicates.ResponseReceived + 1 {
			side := newSideSink(false)
			r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureSink(side.take))})
			r.script("a#1", func(c *call) error { predicates.ReportStage(c.ctx, stage); return nil })
			r.sendEach("a")
			r.advance(time.Minute)
			require.True(t, timeoutOf(t, side).InDoubt)
			require.True(t, timeoutOf(t, side).Ambiguous())
		}
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, opts: options(asyncop.WithFailureSink(side.take), asyncop.WithMaxConcurrentCalls(1)),
			wrap: func(*hand) function {
				return asyncop.Blocking(func(_ context.Context, in string) (string, error) {
					require.NotEqual(t, "a", in)
					time.Sleep(time.Hour)
					return in, nil
				})
			},
		})
		r.sendEach("x")
		r.advance(time.Second)
		r.sendEach("a")
		r.advance(time.Minute)
		require.Len(t, side.got(), 2)
		never, ok := side.got()[1].Err.(*asyncop.TimeoutError) // as the operator made it
		require.True(t, ok)
		require.Zero(t, never.Attempts)
		require.False(t, never.InDoubt)
		require.False(t, never.Ambiguous())
		require.NoError(t, r.end())
		r.advance(time.Hour)
	})
}

// FLIP-232 strategies go by the stage that was reported, as their predicates prove nothing; one on results is the
// application's own word.
func TestTimeoutInDoubtWithFlipStrategies(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(c *call) error
		want   bool
	}{
		"error":              {fails, true},
		"error before it":    {func(c *call) error { predicates.ReportStage(c.ctx, predicates.ClientDispatch); return errBroken }, false},
		"result":             {empty, false},
		"error, then result": {func(c *call) error { return map[int]func(*call) error{1: fails, 2: empty}[c.attempt](c) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				r := newRig(t, m, setup{
					timeout: time.Minute, strategy: retryAll(1000, 40*time.Second), opts: options(asyncop.WithFailureSink(side.take)),
				})
				r.answer = tt.answer
				r.sendEach("a")
				r.advance(time.Minute)
				require.Equal(t, 2, timeoutOf(t, side).Attempts)
				require.Equal(t, tt.want, timeoutOf(t, side).InDoubt)
				require.NoError(t, r.end())
			})
		})
	}
}

// What was called before a restart is in doubt for ever, also if it was not called again since.
func TestTimeoutInDoubtAfterARestart(t *testing.T) {
	for choice := range asyncop.TimeSpent + 1 {
		t.Run(choice.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				store := checkpointtest.NewMemoryStore()
				s := setup{timeout: time.Minute, strategy: retryAgain(3, time.Hour), state: asyncop.State[string, string]{Retries: choice}}
				r := newCheckRig(t, m, s, store)
				r.script("a#1", func(*call) error { return errAgain })
				r.send("x", "a")
				require.Equal(t, "x#1 a#1", r.calls())
				s.opts = append(s.opts, asyncop.WithMaxConcurrentCalls(1)) // x has it
				var side *sideSink
				for range 3 {
					r.save()
					_ = r.cut(errBroken)
					store = store.Reopen()
					side = newSideSink(false)
					r = newCheckRig(t, m, setup{
						timeout: s.timeout, strategy: s.strategy, state: s.state, opts: append(s.opts[:1:1], asyncop.WithFailureSink(side.take)),
					}, store)
					require.Equal(t, "x#1", r.calls())
				}
				r.advance(2 * time.Minute) // a's wait ends with the time it had, and leaves enough for an attempt
				for _, f := range side.got() {
					timedOut, ok := f.Err.(*asyncop.TimeoutError) // as the operator made it
					require.True(t, ok)
					require.True(t, timedOut.InDoubt, f.Element)
				}
				require.Len(t, side.got(), 2)
			})
		})
	}
}

// A6: idempotence is asked of user code; if that breaks, it proves nothing.
func TestAmbiguousWithIdempotenceThatBreaks(t *testing.T) {
	for _, breaks := range []func(){func() { panic("broken") }, runtime.Goexit} {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			r := newRig(t, m, setup{
				timeout:  time.Minute,
				strategy: because(unsafeReason, nil).IdempotentIf(func(any) bool { breaks(); return true }),
				opts:     options(asyncop.WithFailureSink(side.take)),
			})
			r.sendEach("a")
			r.advance(time.Minute)
			require.True(t, timeoutOf(t, side).Ambiguous())
			require.NoError(t, r.end())
		})
	}
	require.False(t, (&asyncop.TimeoutError{}).Ambiguous())
	require.True(t, (&asyncop.TimeoutError{InDoubt: true}).Ambiguous())
}

// A failure reports the reason of its last outcome, and whether its call may have taken effect, for those who send it again.
func TestFailureInDoubt(t *testing.T) {
	no := func(r predicates.Reason) *policy { return because(r, always(true, strategies.Action{})) }
	none := predicates.Reason{}
	for name, tt := range map[string]struct {
		strategy  strategies.AsyncRetryStrategy[string]
		stage     predicates.Stage
		reason    predicates.Reason
		inDoubt   bool
		ambiguous bool
		text      string
	}{
		"refused, unsafe":     {no(unsafeReason), predicates.NetworkTime, unsafeReason, true, true, ", not retried after TEST_UNSAFE, which allows it for idempotent calls only (see strategies.Policy.Idempotent): broken"},
		"refused, safe":       {no(safeReason), predicates.NetworkTime, safeReason, false, false, ", not retried after TEST_SAFE: broken"},
		"refused, idempotent": {no(unsafeReason).Idempotent(), predicates.NetworkTime, unsafeReason, true, false, ", not retried after TEST_UNSAFE: broken"},
		"refused, not sent":   {no(unsafeReason), predicates.ClientDispatch, unsafeReason, false, false, ", not retried after TEST_UNSAFE: broken"},
		"asked elsewhere": {
			because(unsafeReason, after(0, strategies.Action{})), predicates.NetworkTime, unsafeReason, true, true,
			", not retried after TEST_UNSAFE, which allows it for idempotent calls only (see strategies.Policy.Idempotent): broken",
		},
		"rejected":                  {because(rejection, nil), predicates.NetworkTime, rejection, false, false, ": broken"},
		"rejected, without a stage": {because(rejection, nil), predicates.Unreported, rejection, false, false, ": broken"},
		"no reason": {
			strategies.ReasonAware(predicates.ByException[string](predicates.ErrorIs(errTestOver), unsafeReason), nil),
			predicates.NetworkTime, none, true, true, ": broken",
		},
		"no predicate":             {onEmptyOnly(), predicates.NetworkTime, none, true, true, ": broken"},
		"no predicate, not sent":   {onEmptyOnly(), predicates.ClientDispatch, none, false, false, ": broken"},
		"no retries, and not sent": {strategies.NoRetry[string](), predicates.ClientDispatch, none, false, false, ": broken"},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				run := func(opts ...asyncop.Option) error {
					r := newRig(t, m, setup{timeout: time.Minute, strategy: tt.strategy, opts: opts})
					r.script("a#1", func(c *call) error { predicates.ReportStage(c.ctx, tt.stage); return errBroken })
					r.sendEach("a")
					return r.end()
				}
				side := newSideSink(false)
				require.NoError(t, run(asyncop.WithFailureSink(side.take)))
				f := side.got()[0]
				require.Equal(t, tt.reason, f.Reason)
				require.Equal(t, tt.inDoubt, f.InDoubt)
				require.Equal(t, tt.ambiguous, f.Ambiguous())
				var failed *asyncop.ElementError
				require.ErrorAs(t, run(), &failed)
				require.Equal(t, tt.reason, failed.Reason)
				require.Equal(t, tt.inDoubt, failed.InDoubt)
				require.Equal(t, tt.ambiguous, failed.Ambiguous())
				require.EqualError(t, failed, `asyncop: element "a" failed after 1 attempt in 0s`+tt.text)
			})
		})
	}
}

// Reason is that of the last outcome, Reasons are those of the retries.
func TestFailureOfTheLastOutcome(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		byError := predicates.Classifiers(
			predicates.ByException[string](predicates.ErrorIs(errBroken), safeReason),
			predicates.ByException[string](predicates.ErrorIs(errAgain), unsafeReason))
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: strategies.ReasonAware(byError, nil), opts: options(asyncop.WithFailureSink(side.take)),
		})
		r.script("a#1", fails) // retried
		r.script("a#2", func(*call) error { return errAgain })
		r.script("b#1", fails)
		r.script("b#2", func(*call) error { return errTestOver }) // for no reason
		r.sendEach("ab")
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "a b", side.elements())
		a, b := side.got()[0], side.got()[1]
		require.Equal(t, unsafeReason, a.Reason)
		require.Equal(t, predicates.ReasonSet{}.With(safeReason), a.Reasons)
		require.Equal(t, predicates.Reason{}, b.Reason)
		require.Equal(t, predicates.ReasonSet{}.With(safeReason), b.Reasons)
	})
}

// A rejection is about its own attempt: an earlier one may have taken effect all the same.
func TestRejectedInDoubtOfAnEarlierAttempt(t *testing.T) {
	for first, inDoubt := range map[predicates.Reason]bool{safeReason: false, unsafeReason: true} {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			classify := predicates.Classifiers(
				predicates.ByException[string](predicates.ErrorIs(errBroken), first),
				predicates.ByException[string](predicates.ErrorIs(errAgain), rejection))
			r := newRig(t, m, setup{
				timeout: time.Minute, strategy: aware(classify, always(true, strategies.RetryAfter(0))),
				opts: options(asyncop.WithFailureSink(side.take)),
			})
			r.script("a#1", fails)
			r.script("a#2", func(*call) error { return errAgain })
			r.sendEach("a")
			require.NoError(t, r.end())
			f := side.got()[0]
			require.Equal(t, 2, f.Attempts)
			require.Equal(t, rejection, f.Reason)
			require.Equal(t, predicates.ReasonSet{}.With(first), f.Reasons)
			require.Equal(t, inDoubt, f.InDoubt)
			require.Equal(t, strategies.Final, f.Verdict)
		})
	}
}

// What is cut off is in doubt if it was called, and nobody knows of its end.
func TestAbandonedInDoubt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := inEveryPhase(t, m, side)
		r.cancel(errTestOver)
		synctest.Wait()
		side.unblock()
		require.Error(t, r.wait())
		inDoubt := map[string]bool{}
		for _, f := range side.got() {
			inDoubt[f.Element] = f.InDoubt
		}
		require.Equal(t, map[string]bool{
			"handling": true, "failing": true, "done": true, "running1": true, "running2": true,
			"ready": true, "backoff": true, // their errors prove nothing
			"fresh": false,
		}, inDoubt)
	})
}

// onEmptyOnly looks at results only.
func onEmptyOnly() strategies.AsyncRetryStrategy[string] {
	return strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult)
}

// A6: nor is a call forgotten because the classifier broke.
func TestFailureInDoubtWhereThePredicateBreaks(t *testing.T) {
	for _, b := range breakages {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			s := strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { b.breaks(); return true })
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s, opts: options(asyncop.WithFailureSink(side.take))})
			r.answer = fails
			r.sendEach("a")
			require.NoError(t, r.end())
			require.True(t, side.got()[0].InDoubt)
		})
	}
}

// What was never called is in no doubt, although there are results, of the timeout handler.
func TestAbandonedResultsOfAHandler(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, wrap: handled, blocked: true,
			opts: options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(1), asyncop.WithFailureSink(side.take)),
		})
		r.sendEach("ab")
		r.advance(time.Minute)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		inDoubt := map[string]bool{}
		for _, f := range side.got() {
			inDoubt[f.Element] = f.InDoubt
		}
		require.Equal(t, map[string]bool{"a": true, "b": false}, inDoubt)
	})
}

// The reason is that of the last outcome, also if that had none.
func TestAbandonedResultHasNoReason(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: because(safeReason, always(true, strategies.RetryAfter(0))), blocked: true,
			opts: options(asyncop.WithBuffer(0), asyncop.WithFailureSink(side.take)),
		})
		r.script("a#1", fails)
		r.script("a#2", upper)
		r.sendEach("a")
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		require.Equal(t, predicates.Reason{}, side.got()[0].Reason)
		require.Equal(t, predicates.ReasonSet{}.With(safeReason), side.got()[0].Reasons)
	})
}
