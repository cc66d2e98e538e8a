package retry_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// outcomeOf returns what the policy of an operator sees of a call that reports
// ClientDispatch, then does f, and fails.
func outcomeOf(t *testing.T, f func(ctx context.Context)) (seen optest.View) {
	t.Helper()
	_, err := asyncop.Map(t.Context(), []charge{"a"}, asyncop.Blocking(func(ctx context.Context, _ charge) (string, error) {
		predicates.ReportStage(ctx, predicates.ClientDispatch)
		f(ctx)
		return "", optest.ErrBroken
	}), optest.Aware(func(a *optest.View) (predicates.Reason, bool) {
		seen = *a
		return predicates.Reason{}, false
	}, nil), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, optest.ErrBroken)
	return seen
}

// within calls f under an operator that runs in the call that ctx belongs to.
func within(ctx context.Context, f func(ctx context.Context), opts ...asyncop.Option) {
	opts = append(opts, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	_, _ = asyncop.Map(ctx, []string{"x"}, asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		f(ctx)
		return in, nil
	}), nil, opts...)
}

// Operators around an inner operator receive the reports of its attempts.
func TestNestedOperatorsReport(t *testing.T) {
	const (
		dispatch = predicates.ClientDispatch
		network  = predicates.NetworkTime
	)
	type want struct {
		stage               predicates.Stage
		inDoubt, idempotent bool
	}
	for name, tt := range map[string]struct {
		report func(ctx context.Context)
		want   want
	}{
		"nothing":                   {func(context.Context) {}, want{dispatch, false, false}},
		"dispatch":                  {func(ctx context.Context) { predicates.ReportStage(ctx, dispatch) }, want{dispatch, false, false}},
		"network":                   {func(ctx context.Context) { predicates.ReportStage(ctx, network) }, want{network, true, false}},
		"response":                  {func(ctx context.Context) { predicates.ReportStage(ctx, predicates.ResponseReceived) }, want{network, true, false}},
		"sent":                      {func(ctx context.Context) { predicates.ReportSent(ctx) }, want{network, true, false}},
		"refused":                   {func(ctx context.Context) { predicates.ReportSent(ctx).Refused() }, want{dispatch, false, false}},
		"deduplicated":              {func(ctx context.Context) { predicates.ReportSent(predicates.WithDeduplicated(ctx)) }, want{network, true, true}},
		"deduplicated stage":        {func(ctx context.Context) { predicates.ReportStage(predicates.WithDeduplicated(ctx), network) }, want{network, true, true}},
		"deduplicated, and refused": {func(ctx context.Context) { predicates.ReportSent(predicates.WithDeduplicated(ctx)).Refused() }, want{dispatch, false, false}},
		"deduplicated, and sent": {func(ctx context.Context) {
			predicates.ReportSent(predicates.WithDeduplicated(ctx))
			predicates.ReportSent(ctx)
		}, want{network, true, false}},
		"not of the call": {func(ctx context.Context) { predicates.ReportSent(predicates.WithStageReporter(ctx, nil)) }, want{dispatch, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			for depth := 1; depth <= 3; depth++ {
				nested := tt.report
				for range depth {
					inner := nested
					nested = func(ctx context.Context) { within(ctx, inner) }
				}
				seen := outcomeOf(t, nested)
				require.Equal(t, tt.want, want{seen.Stage, seen.InDoubt, seen.Idempotent}, "depth %d", depth)
			}
		})
	}
}

// An operator with observers may give its elements their own ids, which a repeated call
// would not find again.
func TestNestedOperatorsWithIDsOfTheirOwn(t *testing.T) {
	seen := outcomeOf(t, func(ctx context.Context) {
		within(ctx, func(ctx context.Context) { predicates.ReportSent(predicates.WithDeduplicated(ctx)) }, asyncop.WithObserver(watching{}))
	})
	assert.True(t, seen.InDoubt)
	assert.False(t, seen.Idempotent)
}

// watching is an observer without effect.
type watching struct{}

func (watching) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (watching) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }
func (watching) AttemptEnded(_ context.Context, _ observe.Outcome)           {}
func (watching) Ended(_ context.Context, _ observe.Ending)                   {}

// An inner attempt that was cut off may be about to send. Whatever it sends then counts
// for the call around it.
func TestNestedAttemptsThatWereCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(report func(ctx context.Context)) func(context.Context) {
			return func(ctx context.Context) {
				predicates.ReportStage(ctx, predicates.ClientDispatch)
				time.Sleep(2 * time.Second) // it ignores its context
				report(ctx)
			}
		}
		timeout := asyncop.WithAttemptTimeout(time.Second)
		seen := outcomeOf(t, func(ctx context.Context) { within(ctx, slow(func(context.Context) {}), timeout) })
		assert.Equal(t, predicates.NetworkTime, seen.Stage)
		assert.False(t, seen.InDoubt)

		for _, report := range []func(ctx context.Context){
			func(ctx context.Context) { predicates.ReportSent(ctx) },
			func(ctx context.Context) { predicates.ReportStage(ctx, predicates.NetworkTime) },
		} {
			seen = outcomeOf(t, func(ctx context.Context) {
				within(ctx, slow(report), timeout)
				time.Sleep(2 * time.Second)
			})
			assert.True(t, seen.InDoubt)
		}

		seen = outcomeOf(t, func(ctx context.Context) {
			within(ctx, slow(func(ctx context.Context) { predicates.ReportSent(ctx).Refused() }), timeout)
			time.Sleep(2 * time.Second)
		})
		assert.False(t, seen.InDoubt)
		synctest.Wait()
	})
}

// Law X1: an inner operator that is cancelled cuts its calls off, and each of them may
// have taken effect. The call around it then has the latest stage that these calls may
// have reached.
func TestNestedAttempts_InnerOperatorIsCancelled(t *testing.T) {
	for name, end := range map[string]asyncop.Option{
		"cancelled": nil,
		"timed out": asyncop.WithTimeoutFor(func(string) time.Duration { return time.Second }),
	} {
		synctest.Test(t, func(t *testing.T) {
			seen := outcomeOf(t, func(ctx context.Context) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				opts := []asyncop.Option{asyncop.WithLogger(slog.New(slog.DiscardHandler))}
				if end != nil {
					opts = append(opts, end)
				} else {
					time.AfterFunc(time.Second, cancel)
				}
				_, err := asyncop.Map(ctx, []string{"x"}, asyncop.Func(func(context.Context, string, optest.Future) error { return nil }), nil, opts...)
				require.Error(t, err)
			})
			require.Equal(t, predicates.NetworkTime, seen.Stage, name)
		})
	}
}

// The members of a batch and a handler of failures report like a call, and so does a
// lookup that leaves a running load.
func TestNestedBatchesHandlersAndLookups(t *testing.T) {
	quiet := asyncop.WithLogger(slog.New(slog.DiscardHandler))
	seen := outcomeOf(t, func(ctx context.Context) {
		_, _ = asyncop.Map(ctx, []string{"x", "y"}, asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
			predicates.ReportSent(ctx)
			return make([]asyncop.Result[string], len(ins)), nil
		}, 2, time.Hour), nil, quiet)
	})
	assert.True(t, seen.InDoubt, "batch")

	seen = outcomeOf(t, func(ctx context.Context) {
		fails := asyncop.Blocking(func(context.Context, string) (string, error) { return "", optest.ErrBroken })
		_, _ = asyncop.Map(ctx, []string{"x"}, asyncop.HandleFailure(fails, func(ctx context.Context, f asyncop.Failure[string]) ([]string, error) {
			predicates.ReportSent(ctx)
			return nil, f.Err
		}), nil, quiet)
	})
	assert.True(t, seen.InDoubt, "handler")

	synctest.Test(t, func(t *testing.T) {
		seen := outcomeOf(t, func(ctx context.Context) {
			hangs := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
				predicates.ReportSent(ctx)
				<-ctx.Done()
				return in, ctx.Err()
			})
			shared := lookup.New(hangs, nil)
			_, _ = asyncop.Map(ctx, []string{"x"}, shared, nil, asyncop.WithAttemptTimeout(time.Second), quiet)
			synctest.Wait() // it leaves on its own goroutine
		})
		assert.True(t, seen.InDoubt, "lookup")
		synctest.Wait()
	})
}

// A call that charges, and notifies through an inner operator, is not repeated if only
// the notification was refused.
func TestNestedRequestsThatTookEffect(t *testing.T) {
	charges := 0
	inner := asyncop.Blocking(func(ctx context.Context, step string) (string, error) {
		sent := predicates.ReportSent(ctx)
		if step == "charge" {
			charges++
			return step, nil
		}
		sent.Refused()
		return "", predicates.WithReason(optest.ErrBroken, optest.SafeReason)
	})
	_, err := asyncop.Map(t.Context(), []charge{"a"}, asyncop.Blocking(func(ctx context.Context, _ charge) (string, error) {
		_, err := asyncop.Map(ctx, []string{"charge", "notify"}, inner, nil, asyncop.WithMaxConcurrentCalls(1))
		return "", err
	}), strategies.ReasonAware(func(a *optest.View) (predicates.Reason, bool) {
		if a.InDoubt {
			return optest.UnsafeReason, true
		}
		return predicates.Named[string]()(a)
	}, strategies.BestEffort[string]().WithMaxRetries(3)), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, optest.ErrBroken)
	require.Equal(t, 1, charges)
}
