package retry_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// charge is an element whose call must not happen twice, as it says itself.
type charge string

func (charge) Idempotent() bool { return false }

// A call that is tracked is repeated in flight, without a setting; anything else that it has sent keeps it from that (law X1).
func TestTrackedCallsAreRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		report  func(ctx context.Context)
		retried bool
	}{
		"nothing":     {func(context.Context) {}, false},
		"not tracked": {func(ctx context.Context) { predicates.ReportSent(ctx) }, false},
		"tracked":     {func(ctx context.Context) { predicates.ReportSent(predicates.WithTracked(ctx)) }, true},
		"tracked, reported as a stage": {func(ctx context.Context) {
			predicates.ReportStage(predicates.WithTracked(ctx), predicates.NetworkTime)
		}, true},
		"tracked twice": {func(ctx context.Context) {
			tracked := predicates.WithTracked(predicates.WithTracked(ctx))
			predicates.ReportSent(tracked)
			predicates.ReportSent(tracked).Refused()
		}, true},
		"tracked and another": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithTracked(ctx))
			predicates.ReportSent(ctx)
		}, false},
		"tracked and one that was refused": {func(ctx context.Context) {
			predicates.ReportSent(ctx).Refused()
			predicates.ReportSent(predicates.WithTracked(ctx))
		}, true},
		"tracked and something that the function sent": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithTracked(ctx))
			predicates.ReportStage(ctx, predicates.NetworkTime)
		}, false},
		"tracked beside the call": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithTracked(predicates.WithStageReporter(ctx, nil)))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, atOnce := range []bool{true, false} {
				calls := 0
				var failures []asyncop.Failure[charge]
				var strategy strategies.ReasonStrategy[string] = strategies.BestEffort[string]()
				if !atOnce {
					strategy = strategies.ReasonStrategyFunc[string](strategies.BestEffort[string]().Decide)
				}
				op := asyncop.OrderedWaitWithRetry(
					asyncop.Blocking(func(ctx context.Context, in charge) (string, error) {
						if calls++; calls == 1 {
							tt.report(ctx)
							return "", optest.ErrBroken // lost in flight
						}
						return string(in), nil
					}), time.Minute, 1,
					strategies.ReasonAware(predicates.ByException[string](predicates.HasException, optest.UnsafeReason), strategy),
					asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
					asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[charge]) error {
						failures = append(failures, f)
						return nil
					}))
				emitted := 0
				for _, err := range op.Results(func(yield func(charge) bool) { yield("a") }) {
					require.NoError(t, err)
					emitted++
				}
				if tt.retried {
					require.Equal(t, []int{2, 1, 0}, []int{calls, emitted, len(failures)})
				} else {
					require.Equal(t, []int{1, 0, 1}, []int{calls, emitted, len(failures)})
					require.True(t, failures[0].UnsafeToRepeat())
				}
			}
		})
	}
}

// The attempt timeout, too, is an outcome of a call in flight; and when the element ends, it is in doubt as any other: who
// sends it later has no such identity.
func TestTrackedCallsThatTimeOut(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 90 * time.Second, Strategy: optest.Because(optest.UnsafeReason, nil),
			Opts: optest.Options(asyncop.WithAttemptTimeout(time.Minute), asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		predicates.ReportSent(predicates.WithTracked(r.Call("a#1").Ctx))
		r.Advance(time.Minute)
		r.Advance(time.Second)
		predicates.ReportSent(predicates.WithTracked(r.Call("a#2").Ctx))
		r.Advance(time.Minute)
		require.NoError(t, r.End())
		require.Len(t, side.Got(), 1)
		require.True(t, side.Got()[0].UnsafeToRepeat())
	})
}

func TestTrackedElsewhere(t *testing.T) {
	ctx := t.Context()
	require.Equal(t, ctx, predicates.WithTracked(ctx), "no attempt, nothing to track")
}
