package asyncop_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// stageRig is a rig that collects the stages that the classifier saw.
func stageRig(t *testing.T, m mode, s setup) (r *rig, stages *[]predicates.Stage) {
	t.Helper()
	stages = new([]predicates.Stage)
	s.timeout = time.Minute
	s.strategy = aware(func(a *view) (predicates.Reason, bool) {
		*stages = append(*stages, a.Stage)
		return predicates.Reason{}, false
	}, nil)
	s.opts = append(s.opts, asyncop.WithDropOnFailure())
	return newRig(t, m, s), stages
}

// Stages only go forward, and nothing is reported by default.
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
		forEachMode(t, func(t *testing.T, m mode) {
			r, stages := stageRig(t, m, setup{})
			r.sendEach("a")
			for _, s := range tt.reports {
				predicates.ReportStage(r.call("a#1").ctx, s)
			}
			r.fail("a#1", errBroken)
			predicates.ReportStage(r.call("a#1").ctx, predicates.ResponseReceived) // too late
			require.Equal(t, []predicates.Stage{tt.want}, *stages)
			require.NoError(t, r.end())
		})
	}
}

// It is found through wrappers, derived contexts and Blocking.
func TestReportStageThroughWrappers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r, stages := stageRig(t, m, setup{wrap: func(*hand) function {
			inner := asyncop.Blocking(func(ctx context.Context, _ string) (string, error) {
				ctx, cancel := context.WithTimeout(context.WithValue(ctx, struct{}{}, 1), time.Second)
				defer cancel()
				predicates.ReportStage(ctx, predicates.ClientDispatch)
				predicates.ReportStage(context.WithoutCancel(ctx), predicates.NetworkTime)
				return "", errBroken
			})
			return timeoutMethod(asyncop.Func(func(ctx context.Context, in string, f future) error {
				return inner.AsyncInvoke(context.WithValue(ctx, struct{}{}, 2), in, f)
			}), func(context.Context, string) ([]string, error) { return nil, nil })
		}})
		r.send("a")
		require.Equal(t, []predicates.Stage{predicates.NetworkTime}, *stages)
		require.NoError(t, r.end())
	})
}

// Elsewhere it does nothing, and nonsense panics.
func TestReportStageElsewhere(t *testing.T) {
	predicates.ReportStage(t.Context(), predicates.NetworkTime)
	predicates.ReportStage(t.Context(), predicates.Unreported)
	require.Equal(t, "predicates: ReportStage: no such stage: 4", panicOf(func() {
		predicates.ReportStage(t.Context(), predicates.ResponseReceived+1)
	}))
}

// A call that the attempt timeout cuts off may be about to send, whatever it said before.
func TestStageOfAnAttemptTimeout(t *testing.T) {
	for _, tt := range []struct{ reported, want predicates.Stage }{
		{predicates.Unreported, predicates.NetworkTime},
		{predicates.ClientDispatch, predicates.NetworkTime},
		{predicates.NetworkTime, predicates.NetworkTime},
		{predicates.ResponseReceived, predicates.ResponseReceived},
	} {
		forEachClock(t, func(t *testing.T, m mode) {
			r, stages := stageRig(t, m, setup{opts: options(asyncop.WithAttemptTimeout(time.Second))})
			r.sendEach("a")
			predicates.ReportStage(r.call("a#1").ctx, tt.reported)
			r.advance(time.Second)
			require.Equal(t, []predicates.Stage{tt.want}, *stages)
			require.NoError(t, r.end())
		})
	}
}

// Each attempt has stages of its own.
func TestStagesArePerAttempt(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var stages []predicates.Stage
		p := aware(func(a *view) (predicates.Reason, bool) {
			stages = append(stages, a.Stage)
			return safeReason, a.Err != nil
		}, always(true, strategies.RetryAfter(0)))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: p})
		r.sendEach("a")
		predicates.ReportStage(r.call("a#1").ctx, predicates.NetworkTime)
		r.fail("a#1", errBroken)
		predicates.ReportStage(r.call("a#2").ctx, predicates.ClientDispatch)
		predicates.ReportStage(r.call("a#1").ctx, predicates.ResponseReceived) // of an attempt that is over
		r.fail("a#2", errBroken)
		r.complete("a#3", "A")
		require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch, predicates.Unreported}, stages)
		require.NoError(t, r.end())
	})
}

// Clients find the attempt without asyncop; what one request has sent, no later refusal takes back.
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
			forEachMode(t, func(t *testing.T, m mode) {
				var got []look
				p := aware(func(a *view) (predicates.Reason, bool) {
					got = append(got, look{a.Stage, a.InDoubt})
					return predicates.Reason{}, false
				}, nil)
				r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: options(asyncop.WithDropOnFailure())})
				r.sendEach("a")
				ctx := r.call("a#1").ctx
				tt.report(ctx)
				late := predicates.ReportSent(predicates.WithStageReporter(ctx, nil))
				r.fail("a#1", errBroken)
				predicates.ReportSent(ctx).Refused() // too late
				late.Refused()
				require.Equal(t, []look{tt.want}, got)
				require.NoError(t, r.end())
			})
		})
	}
}

// What a client has sent is in doubt also if the attempt timeout cuts the call off.
func TestReportSentBeforeAnAttemptTimeout(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var got []bool
		p := aware(func(a *view) (predicates.Reason, bool) {
			got = append(got, a.InDoubt)
			return predicates.Reason{}, false
		}, nil)
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: p, opts: options(asyncop.WithAttemptTimeout(time.Second), asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		predicates.ReportSent(r.call("a#1").ctx)
		r.advance(time.Second)
		require.Equal(t, []bool{true}, got)
		require.NoError(t, r.end())
	})
}

// What a strategy does before an attempt, and a timeout handler, are not the call.
func TestReportSentBesideTheCall(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var got []predicates.Stage
		p := aware(func(a *view) (predicates.Reason, bool) {
			got = append(got, a.Stage)
			return safeReason, true
		}, always(true, strategies.RetryAfter(0).WithBefore(func(ctx context.Context) error {
			predicates.ReportSent(ctx)
			return nil
		})))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: p, opts: options(asyncop.WithDropOnFailure())})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		predicates.ReportStage(r.call("a#2").ctx, predicates.ClientDispatch)
		r.fail("a#2", errBroken)
		require.Equal(t, []predicates.Stage{predicates.Unreported, predicates.ClientDispatch}, got[:2])
		r.advance(time.Minute)
		require.NoError(t, r.end())
	})
}

func TestReportingAllocatesNothing(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute})
		r.sendEach("a")
		ctx := r.call("a#1").ctx
		require.Zero(t, testing.AllocsPerRun(100, func() {
			predicates.ReportStage(ctx, predicates.NetworkTime)
			predicates.ReportSent(ctx).Refused()
		}))
		r.complete("a#1", "A")
		require.NoError(t, r.end())
	})
}
