package asyncop_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Every combination of stage, idempotence, reason and strategy, through the whole operator: who is retried, and who
// must not be. The right answers are spelled out per strategy.
func TestReasonMatrix(t *testing.T) {
	never := always(true, strategies.Action{})
	byStage := decides(func(_ context.Context, a *view) (strategies.Action, error) {
		if a.Idempotent || a.Stage == predicates.ClientDispatch {
			return strategies.RetryAfter(time.Millisecond), nil
		}
		return strategies.Action{}, nil
	})
	flip := retryAll(3, time.Millisecond)
	type situation struct {
		stage      predicates.Stage
		idempotent bool
		reason     predicates.Reason
	}
	table := []struct {
		name    string
		policy  func(situation) strategy
		retries func(situation) bool
	}{
		{
			"best effort", func(s situation) strategy { return because(s.reason, nil) },
			func(s situation) bool { return s.reason == safeReason || s.reason == alwaysReason || s.idempotent },
		},
		{
			"never", func(s situation) strategy { return because(s.reason, never) },
			func(s situation) bool { return s.reason == alwaysReason },
		},
		{
			"by stage, off the loop", func(s situation) strategy { return because(s.reason, byStage) },
			func(s situation) bool {
				return s.reason == alwaysReason || s.idempotent || s.stage == predicates.ClientDispatch
			},
		},
		{"FLIP-232", func(situation) strategy { return flip }, func(situation) bool { return true }},
	}
	for _, row := range table {
		for stage := range predicates.ResponseReceived + 1 {
			for _, idempotent := range []bool{false, true} {
				for _, reason := range []predicates.Reason{{}, unsafeReason, safeReason, alwaysReason} {
					s := situation{stage, idempotent, reason}
					name := fmt.Sprintf("%s/%v/idempotent=%v/%v", row.name, stage, idempotent, reason)
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							retried := row.retries(s) && (!reason.IsZero() || row.name == "FLIP-232")
							strategy := row.policy(s)
							if p, ok := strategy.(*policy); ok && idempotent {
								strategy = p.Idempotent()
							}
							r := newRig(t, mode{ordered: true, capacity: 4}, setup{
								timeout: time.Minute, strategy: strategy, opts: options(asyncop.WithDropOnFailure()),
							})
							r.answer = func(c *call) error {
								if c.attempt == 2 {
									return upper(c)
								}
								predicates.ReportStage(c.ctx, stage)
								return errBroken
							}
							r.send("a")
							r.advance(time.Second)
							if retried {
								require.Equal(t, "A", r.outputs())
								require.Equal(t, "a#1@0s a#2@1ms", r.callTimes())
							} else {
								require.Equal(t, "a#1", r.calls())
								require.EqualValues(t, 1, r.stats().Dropped)
							}
							require.NoError(t, r.end())
							checkBalance(t, r.stats())
						})
					})
				}
			}
		}
	}
}

// What a strategy sees, on the loop and off it, attempt by attempt.
func TestWhatAStrategySees(t *testing.T) {
	for _, atOnce := range []bool{true, false} {
		forEachClock(t, func(t *testing.T, m mode) {
			var seen []string
			see := func(ctx context.Context, a *view) (strategies.Action, error) {
				seen = append(seen, fmt.Sprintf("%v #%d/%d %v %v %v idempotent=%v %v %v/%v %v %v",
					a.Input, a.Number, a.Retries(), a.Stage, a.Reason, a.Reasons, a.Idempotent, a.Err,
					a.Elapsed, a.Remaining, a.Value(valueKey{}), ctx.Value(valueKey{})))
				return strategies.RetryAfter(time.Second), nil
			}
			s := decides(see)
			if atOnce {
				s = immediate(s)
			}
			reasons := []predicates.Reason{safeReason, unsafeReason, safeReason}
			p := aware(func(a *view) (predicates.Reason, bool) {
				return reasons[a.Retries()], a.Err != nil
			}, s).IdempotentIf(func(in any) bool { return in == "a" })
			side := newSideSink(false)
			r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: options(asyncop.WithFailureSink(side.take))})
			r.send("a")
			r.advance(time.Second)
			predicates.ReportStage(r.call("a#1").ctx, predicates.ResponseReceived)
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			r.fail("a#2", errBroken)
			r.advance(time.Second)
			r.fail("a#3", errBroken)
			r.advance(time.Second)
			require.Equal(t, []string{
				"a #1/0 response received TEST_SAFE {} idempotent=true broken 1s/59s of the operator of the operator",
				"a #2/1 network time TEST_UNSAFE {TEST_SAFE} idempotent=true broken 2s/58s of the operator of the operator",
				"a #3/2 network time TEST_SAFE {TEST_SAFE, TEST_UNSAFE} idempotent=true broken 3s/57s of the operator of the operator",
			}, seen)
			r.advance(time.Hour) // the fourth attempt times out
			require.Equal(t, "a", side.elements())
			require.Equal(t, predicates.ReasonSet{}.With(safeReason).With(unsafeReason), side.got()[0].Reasons)
			require.NoError(t, r.end())
		})
	}
}

// An element may say itself that its call may happen twice.
func TestElementsThatAreIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[request]int{}
		fn := asyncop.Func(func(_ context.Context, in request, _ asyncop.ResultFuture[string]) error {
			calls[in]++
			return errBroken
		})
		p := aware(predicates.ByException[string](predicates.HasException, unsafeReason), nil)
		op := asyncop.OrderedWaitWithRetry(fn, time.Second, 4, p, asyncop.WithDropOnFailure())
		op.In() <- request("GET")
		op.In() <- request("POST")
		time.Sleep(time.Minute)
		close(op.In())
		require.NoError(t, op.Wait())
		require.Equal(t, 1, calls["POST"])
		require.Greater(t, calls["GET"], 5)
	})
}

type request string

func (r request) Idempotent() bool { return r == "GET" }

// Idempotence is user code, too (A6).
func TestIdempotenceThatBreaks(t *testing.T) {
	for _, b := range breakages {
		forEachMode(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			p := because(safeReason, nil).IdempotentIf(func(any) bool { b.breaks(); return true }).ErrorsOnly()
			r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: options(asyncop.WithFailureSink(side.take))})
			r.sendEach("ab")
			r.fail("a#1", errBroken)
			r.complete("b#1", "B")
			require.Equal(t, "a", side.elements())
			require.ErrorIs(t, side.got()[0].Err, errBroken)
			require.ErrorAs(t, side.got()[0].Err, new(*asyncop.PanicError))
			require.Equal(t, "B", r.outputs())
			require.NoError(t, r.end())
		})
	}
}
