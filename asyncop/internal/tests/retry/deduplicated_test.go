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

// charge is an element that reports that its call is not idempotent.
type charge string

func (charge) Idempotent() bool { return false }

// A call that is deduplicated is repeated in flight, without a setting. A request of the
// same call that is not deduplicated prevents this (law X1).
func TestWithDeduplicated_CallsAreRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		report  func(ctx context.Context)
		retried bool
	}{
		"nothing":          {func(context.Context) {}, false},
		"not deduplicated": {func(ctx context.Context) { predicates.ReportSent(ctx) }, false},
		"deduplicated":     {func(ctx context.Context) { predicates.ReportSent(predicates.WithDeduplicated(ctx)) }, true},
		"deduplicated, reported as a stage": {func(ctx context.Context) {
			predicates.ReportStage(predicates.WithDeduplicated(ctx), predicates.NetworkTime)
		}, true},
		"deduplicated twice": {func(ctx context.Context) {
			deduplicated := predicates.WithDeduplicated(predicates.WithDeduplicated(ctx))
			predicates.ReportSent(deduplicated)
			predicates.ReportSent(deduplicated).Refused()
		}, true},
		"deduplicated and another": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithDeduplicated(ctx))
			predicates.ReportSent(ctx)
		}, false},
		"deduplicated and one that was refused": {func(ctx context.Context) {
			predicates.ReportSent(ctx).Refused()
			predicates.ReportSent(predicates.WithDeduplicated(ctx))
		}, true},
		"deduplicated and something that the function sent": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithDeduplicated(ctx))
			predicates.ReportStage(ctx, predicates.NetworkTime)
		}, false},
		"deduplicated beside the call": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithDeduplicated(predicates.WithStageReporter(ctx, nil)))
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

// An attempt timeout is also an outcome of a call in flight. When the element ends, it is
// in doubt like any other element, because a later sender does not have the call's
// identity.
func TestDeduplicatedCallsThatTimeOut(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 90 * time.Second, Strategy: optest.Because(optest.UnsafeReason, nil),
			Opts: optest.Options(asyncop.WithAttemptTimeout(time.Minute), asyncop.WithFailureSink(side.Take)),
		})
		r.SendEach("a")
		predicates.ReportSent(predicates.WithDeduplicated(r.Call("a#1").Ctx))
		r.Advance(time.Minute)
		r.Advance(time.Second)
		predicates.ReportSent(predicates.WithDeduplicated(r.Call("a#2").Ctx))
		r.Advance(time.Minute)
		require.NoError(t, r.End())
		require.Len(t, side.Got(), 1)
		require.True(t, side.Got()[0].UnsafeToRepeat())
	})
}

func TestDeduplicatedElsewhere(t *testing.T) {
	ctx := t.Context()
	require.Equal(t, ctx, predicates.WithDeduplicated(ctx), "no attempt, nothing to track")
}
