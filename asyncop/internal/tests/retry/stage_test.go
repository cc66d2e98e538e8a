package retry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// stageRig returns a rig and the stages that its classifier has received.
func stageRig(t *testing.T, m optest.Mode, s optest.Setup) (r *optest.Rig, stages *[]predicates.Stage) {
	t.Helper()
	stages = new([]predicates.Stage)
	s.Timeout = time.Minute
	s.Strategy = optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
		*stages = append(*stages, a.Stage)
		return predicates.Reason{}, false
	}, nil)
	s.Opts = append(s.Opts, asyncop.WithDropOnFailure())
	return optest.NewRig(t, m, s), stages
}

// A stage never moves backwards, and the default is Unreported.
func TestReportStage(t *testing.T) {
	const (
		dispatch = predicates.ClientDispatch
		network  = predicates.NetworkTime
		response = predicates.ResponseReceived
	)
	for _, tt := range []struct {
		reports []predicates.Stage
		want    predicates.Stage
	}{
		{nil, predicates.Unreported},
		{[]predicates.Stage{predicates.Unreported}, predicates.Unreported},
		{[]predicates.Stage{dispatch}, dispatch},
		{[]predicates.Stage{dispatch, network}, network},
		{[]predicates.Stage{network, dispatch}, network},
		{[]predicates.Stage{response, network, dispatch, predicates.Unreported}, response},
		{[]predicates.Stage{dispatch, dispatch, response}, response},
	} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r, stages := stageRig(t, m, optest.Setup{})
			r.SendEach("a")
			for _, s := range tt.reports {
				predicates.ReportStage(r.Call("a#1").Ctx, s)
			}
			r.Fail("a#1", optest.ErrBroken)
			predicates.ReportStage(r.Call("a#1").Ctx, predicates.ResponseReceived) // too late
			require.Equal(t, []predicates.Stage{tt.want}, *stages)
			require.NoError(t, r.End())
		})
	}
}

// ReportStage finds the attempt through wrappers, derived contexts and Blocking.
func TestReportStageThroughWrappers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r, stages := stageRig(t, m, optest.Setup{Wrap: func(*optest.Hand) optest.Function {
			inner := asyncop.Blocking(func(ctx context.Context, _ string) (string, error) {
				ctx, cancel := context.WithTimeout(context.WithValue(ctx, struct{}{}, 1), time.Second)
				defer cancel()
				predicates.ReportStage(ctx, predicates.ClientDispatch)
				predicates.ReportStage(context.WithoutCancel(ctx), predicates.NetworkTime)
				return "", optest.ErrBroken
			})
			return optest.TimeoutMethod(asyncop.Func(func(ctx context.Context, in string, f optest.Future) error {
				return inner.AsyncInvoke(context.WithValue(ctx, struct{}{}, 2), in, f)
			}), func(context.Context, string) ([]string, error) { return nil, nil })
		}})
		r.Send("a")
		require.Equal(t, []predicates.Stage{predicates.NetworkTime}, *stages)
		require.NoError(t, r.End())
	})
}

// Outside a call, ReportStage has no effect. It panics on a stage that does not exist.
func TestReportStageElsewhere(t *testing.T) {
	predicates.ReportStage(t.Context(), predicates.NetworkTime)
	predicates.ReportStage(t.Context(), predicates.Unreported)
	require.Equal(t, "predicates: ReportStage: no such stage: 4", optest.PanicOf(func() {
		predicates.ReportStage(t.Context(), predicates.ResponseReceived+1)
	}))
}

// A call that was cut off by the attempt timeout may be about to send, whatever it has
// reported before.
func TestStageOfAnAttemptTimeout(t *testing.T) {
	for _, tt := range []struct{ reported, want predicates.Stage }{
		{predicates.Unreported, predicates.NetworkTime},
		{predicates.ClientDispatch, predicates.NetworkTime},
		{predicates.NetworkTime, predicates.NetworkTime},
		{predicates.ResponseReceived, predicates.ResponseReceived},
	} {
		optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
			r, stages := stageRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second))})
			r.SendEach("a")
			predicates.ReportStage(r.Call("a#1").Ctx, tt.reported)
			r.Advance(time.Second)
			require.Equal(t, []predicates.Stage{tt.want}, *stages)
			require.NoError(t, r.End())
		})
	}
}

func TestStagesArePerAttempt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var stages []predicates.Stage
		p := optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
			stages = append(stages, a.Stage)
			return optest.SafeReason, a.Err != nil
		}, optest.Always(true, strategies.RetryAfter(0)))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p})
		r.SendEach("a")
		predicates.ReportStage(r.Call("a#1").Ctx, predicates.NetworkTime)
		r.Fail("a#1", optest.ErrBroken)
		predicates.ReportStage(r.Call("a#2").Ctx, predicates.ClientDispatch)
		predicates.ReportStage(r.Call("a#1").Ctx, predicates.ResponseReceived) // the attempt has ended
		r.Fail("a#2", optest.ErrBroken)
		r.Complete("a#3", "A")
		require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch, predicates.Unreported}, stages)
		require.NoError(t, r.End())
	})
}

// Clients find the attempt without asyncop. Once one request was sent, the refusal of a
// later request does not withdraw that.
func TestReportSent(t *testing.T) {
	type look struct {
		stage   predicates.Stage
		inDoubt bool
	}
	for name, tt := range map[string]struct {
		report func(ctx context.Context)
		want   look
	}{
		"nothing": {func(context.Context) {}, look{predicates.Unreported, false}},
		"stage only": {func(ctx context.Context) {
			predicates.ReportStage(ctx, predicates.NetworkTime)
		}, look{predicates.NetworkTime, false}},
		"sent": {func(ctx context.Context) {
			predicates.ReportStage(ctx, predicates.ClientDispatch)
			predicates.ReportSent(ctx)
		}, look{predicates.NetworkTime, true}},
		"refused": {func(ctx context.Context) {
			predicates.ReportStage(ctx, predicates.ClientDispatch)
			predicates.ReportSent(ctx).Refused()
		}, look{predicates.ClientDispatch, false}},
		"one of two refused": {func(ctx context.Context) {
			predicates.ReportSent(ctx)
			predicates.ReportSent(ctx).Refused()
		}, look{predicates.NetworkTime, true}},
		"both refused": {func(ctx context.Context) {
			first, second := predicates.ReportSent(ctx), predicates.ReportSent(ctx)
			first.Refused()
			second.Refused()
		}, look{predicates.Unreported, false}},
		"more than can be counted": {func(ctx context.Context) {
			for range 1 << 17 {
				defer predicates.ReportSent(ctx).Refused()
			}
		}, look{predicates.NetworkTime, true}},
		"outside": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithStageReporter(ctx, nil))
		}, look{predicates.Unreported, false}},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var got []look
				p := optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
					got = append(got, look{a.Stage, a.InDoubt})
					return predicates.Reason{}, false
				}, nil)
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithDropOnFailure())})
				r.SendEach("a")
				ctx := r.Call("a#1").Ctx
				tt.report(ctx)
				late := predicates.ReportSent(predicates.WithStageReporter(ctx, nil))
				r.Fail("a#1", optest.ErrBroken)
				predicates.ReportSent(ctx).Refused() // too late
				late.Refused()
				require.Equal(t, []look{tt.want}, got)
				require.NoError(t, r.End())
			})
		})
	}
}

// A request that a client has sent is in doubt even if the attempt timeout cuts the call
// off.
func TestReportSentBeforeAnAttemptTimeout(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var got []bool
		p := optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
			got = append(got, a.InDoubt)
			return predicates.Reason{}, false
		}, nil)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second), asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		predicates.ReportSent(r.Call("a#1").Ctx)
		r.Advance(time.Second)
		require.Equal(t, []bool{true}, got)
		require.NoError(t, r.End())
	})
}

// A Before of the strategy does not count as the call.
func TestReportSentBesideTheCall(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var got []predicates.Stage
		p := optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
			got = append(got, a.Stage)
			return optest.SafeReason, true
		}, optest.Always(true, strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			predicates.ReportSent(ctx)
			return nil
		})))
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: p, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		predicates.ReportStage(r.Call("a#2").Ctx, predicates.ClientDispatch)
		r.Fail("a#2", optest.ErrBroken)
		require.Equal(t, []predicates.Stage{predicates.Unreported, predicates.ClientDispatch}, got[:2])
		r.Advance(time.Minute)
		require.NoError(t, r.End())
	})
}

func TestReportingAllocatesNothing(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute})
		r.SendEach("a")
		ctx := r.Call("a#1").Ctx
		require.Zero(t, testing.AllocsPerRun(100, func() {
			predicates.ReportStage(ctx, predicates.NetworkTime)
			predicates.ReportSent(ctx).Refused()
		}))
		r.Complete("a#1", "A")
		require.NoError(t, r.End())
	})
}
