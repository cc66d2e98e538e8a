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
	s.strategy = strategies.ReasonAware(func(a *view) (predicates.Reason, bool) {
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
				asyncop.ReportStage(r.call("a#1").ctx, s)
			}
			r.fail("a#1", errBroken)
			asyncop.ReportStage(r.call("a#1").ctx, predicates.ResponseReceived) // too late
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
				asyncop.ReportStage(ctx, predicates.ClientDispatch)
				asyncop.MarkSent(context.WithoutCancel(ctx))
				return "", errBroken
			})
			return asyncop.HandleTimeout(asyncop.Func(func(ctx context.Context, in string, f future) error {
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
	asyncop.MarkSent(t.Context())
	asyncop.ReportStage(t.Context(), predicates.Unreported)
	require.Equal(t, "asyncop: ReportStage: no such stage: 4", panicOf(func() {
		asyncop.ReportStage(t.Context(), predicates.ResponseReceived+1)
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
			asyncop.ReportStage(r.call("a#1").ctx, tt.reported)
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
		p := strategies.ReasonAware(func(a *view) (predicates.Reason, bool) {
			stages = append(stages, a.Stage)
			return safeReason, a.Err != nil
		}, always(true, strategies.RetryAfter(0)))
		r := newRig(t, m, setup{timeout: time.Minute, strategy: p})
		r.sendEach("a")
		asyncop.MarkSent(r.call("a#1").ctx)
		r.fail("a#1", errBroken)
		asyncop.ReportStage(r.call("a#2").ctx, predicates.ClientDispatch)
		asyncop.ReportStage(r.call("a#1").ctx, predicates.ResponseReceived) // of an attempt that is over
		r.fail("a#2", errBroken)
		r.complete("a#3", "A")
		require.Equal(t, []predicates.Stage{predicates.NetworkTime, predicates.ClientDispatch, predicates.Unreported}, stages)
		require.NoError(t, r.end())
	})
}
