package delivery_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// endings counts how elements end, as a collector of metrics does.
type endings struct{ ended, inDoubt int }

func (*endings) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (*endings) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }
func (*endings) AttemptEnded(context.Context, observe.Outcome)               {}
func (o *endings) Ended(_ context.Context, e observe.Ending) {
	o.ended++
	if e.InDoubt {
		o.inDoubt++
	}
}

// refuse makes a call that is answered with 402: it was refused for good, without effect.
func refuse[T any](context.Context, T) (string, error) {
	request, err := http.NewRequest(http.MethodPost, "https://pay.example", nil)
	if err != nil {
		return "", err
	}
	return "", httpretry.CheckResponse(&http.Response{StatusCode: http.StatusPaymentRequired, Request: request})
}

// A call that the service has refused has had no effect. The failure, the queue, the
// flood guard, the log lines and the metrics agree about that, whatever the policy and
// the type.
func TestQueueTakeFailure_RefusedCall(t *testing.T) {
	never := func(error) bool { return false }
	for name, strategy := range map[string]strategies.Retry[string]{
		"no strategy":       strategies.NoRetry[string](),
		"FLIP-232":          strategies.FixedDelay[string](2, time.Millisecond).RetryIfException(never),
		"by reasons":        strategies.ReasonAware(httpretry.Classifier[string](), nil),
		"by other reasons":  strategies.ReasonAware(predicates.ByException[string](never, httpretry.InProgress), nil),
		"FLIP-232, retried": strategies.FixedDelay[string](2, time.Millisecond).RetryIfException(predicates.HasException),
	} {
		isRetried := name == "FLIP-232, retried"
		t.Run(name+"/string", func(t *testing.T) { refusedCall[string](t, strategy, isRetried) })
		t.Run(name+"/idempotent", func(t *testing.T) { refusedCall[job](t, strategy, isRetried) })
	}
}

func refusedCall[T ~string](t *testing.T, strategy strategies.Retry[string], isRetried bool) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		engine := memory.Open()
		orders := delivery.NewQueue[T](engine, "orders", noLog)
		for i := range n {
			require.NoError(t, orders.Put(t.Context(), "order", delivery.ID(fmt.Sprint(i))))
		}
		var lines bytes.Buffer
		var failures []asyncop.Failure[T]
		observer := &endings{}
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(refuse[T]), 10*time.Second, 1, strategy,
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))), asyncop.WithObserver(observer),
			asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[T]) error {
				failures = append(failures, f)
				return orders.TakeFailure(ctx, f)
			}))
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		summary, err := delivery.Run(ctx, orders, op, &collected{}, silently, delivery.WithFloodGuard(0.5, 4))
		require.NoError(t, err)
		require.Equal(t, n, summary.HandedOver)
		if !isRetried {
			require.Zero(t, summary.Floods, "the service answers")
		}
		require.Len(t, failures, n)
		for _, f := range failures {
			require.False(t, f.InDoubt)
			require.False(t, f.UnsafeToRepeat())
			require.Equal(t, "HTTP_402_PAYMENT_REQUIRED", f.Reason.Name())
			require.Equal(t, !isRetried, f.Reason.IsRejection(), "a predicate that asks for a retry knows better")
		}
		require.Equal(t, n, observer.ended)
		require.Zero(t, observer.inDoubt, "metrics")
		require.NotContains(t, lines.String(), "in_doubt", "log lines")
		want := store.Permanent
		if isRetried {
			want = store.Exhausted
		}
		dead := entriesOf(t, engine, orders.DeadLetters())
		require.Len(t, dead, n)
		for _, d := range dead {
			require.Equal(t, want, d.Cause)
			require.False(t, d.Meta.UnsafeToRepeat)
			require.Equal(t, []string{"HTTP_402_PAYMENT_REQUIRED"}, d.Meta.Reasons)
		}
	})
}
