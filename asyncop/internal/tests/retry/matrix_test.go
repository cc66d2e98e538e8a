package retry_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Every combination of stage, idempotence, reason and strategy, through the whole
// operator: which elements are retried, and which must not be. The right answers are
// listed per strategy.
func TestReasonMatrix(t *testing.T) {
	never := optest.Always(true, strategies.Action{})
	byStage := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
		if a.Idempotent || a.Stage == predicates.ClientDispatch {
			return strategies.RetryAfter(time.Millisecond), nil
		}
		return strategies.Action{}, nil
	})
	flip := optest.RetryAll(3, time.Millisecond)
	type situation struct {
		stage      predicates.Stage
		idempotent bool
		reason     predicates.Reason
	}
	table := []struct {
		name    string
		policy  func(situation) optest.Strategy
		retries func(situation) bool
	}{
		{
			"best effort", func(s situation) optest.Strategy { return optest.Because(s.reason, nil) },
			func(s situation) bool {
				return s.reason == optest.SafeReason || s.reason == alwaysReason || s.idempotent
			},
		},
		{
			"never", func(s situation) optest.Strategy { return optest.Because(s.reason, never) },
			func(s situation) bool { return s.reason == alwaysReason },
		},
		{
			"by stage, off the loop", func(s situation) optest.Strategy { return optest.Because(s.reason, byStage) },
			func(s situation) bool {
				return s.reason == alwaysReason || s.idempotent || s.stage == predicates.ClientDispatch
			},
		},
		{"FLIP-232", func(situation) optest.Strategy { return flip }, func(situation) bool { return true }},
	}
	for _, row := range table {
		for stage := range predicates.ResponseReceived + 1 {
			for _, idempotent := range []bool{false, true} {
				for _, reason := range []predicates.Reason{{}, optest.UnsafeReason, optest.SafeReason, alwaysReason} {
					s := situation{stage, idempotent, reason}
					name := fmt.Sprintf("%s/%v/idempotent=%v/%v", row.name, stage, idempotent, reason)
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							retried := row.retries(s) && (!reason.IsZero() || row.name == "FLIP-232")
							strategy := row.policy(s)
							if p, ok := strategy.(*optest.Policy); ok && idempotent {
								strategy = p.Idempotent()
							}
							r := optest.NewRig(t, optest.Mode{Ordered: true, Capacity: 4}, optest.Setup{
								Timeout: time.Minute, Strategy: strategy, Opts: optest.Options(asyncop.WithDropOnFailure()),
							})
							r.Answer = func(c *optest.Call) error {
								if c.Attempt == 2 {
									return optest.Upper(c)
								}
								predicates.ReportStage(c.Ctx, stage)
								return optest.ErrBroken
							}
							r.Send("a")
							r.Advance(time.Second)
							if retried {
								require.Equal(t, "A", r.Outputs())
								require.Equal(t, "a#1@0s a#2@1ms", r.CallTimes())
							} else {
								require.Equal(t, "a#1", r.Calls())
								require.EqualValues(t, 1, r.Stats().Dropped)
							}
							require.NoError(t, r.End())
							optest.CheckBalance(t, r.Stats())
						})
					})
				}
			}
		}
	}
}

// The arguments of a strategy, attempt by attempt, on the loop and off it.
func TestStrategy_Arguments(t *testing.T) {
	for _, atOnce := range []bool{true, false} {
		optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
			var seen []string
			see := func(ctx context.Context, a *optest.View) (strategies.Action, error) {
				seen = append(seen, fmt.Sprintf("%v #%d/%d %v %v %v idempotent=%v %v %v/%v %v %v",
					a.Input, a.Number, a.Retries(), a.Stage, a.Reason, a.Reasons, a.Idempotent, a.Err,
					a.Elapsed, a.Remaining, a.Value(optest.ValueKey{}), ctx.Value(optest.ValueKey{})))
				return strategies.RetryAfter(time.Second), nil
			}
			s := optest.Decides(see)
			if atOnce {
				s = optest.Immediate(s)
			}
			reasons := []predicates.Reason{optest.SafeReason, optest.UnsafeReason, optest.SafeReason}
			p := optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
				return reasons[a.Retries()], a.Err != nil
			}, s).IdempotentIf(func(in any) bool { return in == "a" })
			side := optest.NewSideSink(false)
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
			r.Send("a")
			r.Advance(time.Second)
			predicates.ReportStage(r.Call("a#1").Ctx, predicates.ResponseReceived)
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			r.Fail("a#2", optest.ErrBroken)
			r.Advance(time.Second)
			r.Fail("a#3", optest.ErrBroken)
			r.Advance(time.Second)
			require.Equal(t, []string{
				"a #1/0 response received TEST_SAFE {} idempotent=true broken 1s/59s of the operator of the operator",
				"a #2/1 network time TEST_UNSAFE {TEST_SAFE} idempotent=true broken 2s/58s of the operator of the operator",
				"a #3/2 network time TEST_SAFE {TEST_SAFE, TEST_UNSAFE} idempotent=true broken 3s/57s of the operator of the operator",
			}, seen)
			r.Advance(time.Hour) // the fourth attempt times out
			require.Equal(t, "a", side.Elements())
			require.Equal(t, predicates.ReasonSet{}.With(optest.SafeReason).With(optest.UnsafeReason), side.Got()[0].Reasons)
			require.NoError(t, r.End())
		})
	}
}

// An element can report that its call is idempotent.
func TestElementsThatAreIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[request]int{}
		fn := asyncop.Func(func(_ context.Context, in request, _ asyncop.ResultFuture[string]) error {
			calls[in]++
			return optest.ErrBroken
		})
		p := optest.Aware(predicates.ByException[string](predicates.HasException, optest.UnsafeReason), nil)
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

// Idempotence is user code, too (law A6).
func TestIdempotenceThatBreaks(t *testing.T) {
	for _, b := range optest.Panics() {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			p := optest.Because(optest.SafeReason, nil).IdempotentIf(func(any) bool { b.Breaks(); return true }).ErrorsOnly()
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
			r.SendEach("ab")
			r.Fail("a#1", optest.ErrBroken)
			r.Complete("b#1", "B")
			require.Equal(t, "a", side.Elements())
			require.ErrorIs(t, side.Got()[0].Err, optest.ErrBroken)
			require.ErrorAs(t, side.Got()[0].Err, new(*asyncop.PanicError))
			require.Equal(t, "B", r.Outputs())
			require.NoError(t, r.End())
		})
	}
}
