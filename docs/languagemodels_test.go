package docs_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

func TestLanguageModels_EmptyAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paid := time.Now().Add(time.Hour)
		prompts := delivery.NewQueue[string](memory.Open(), "prompts", delivery.WithLogger(quiet))
		require.NoError(t, prompts.Put(t.Context(), "a prompt"))
		calls := 0
		complete := func(context.Context, string) (string, error) {
			calls++
			var err error
			if time.Now().Before(paid) {
				err = &httpretry.StatusError{StatusCode: http.StatusPaymentRequired}
			}
			status, isStatus := errors.AsType[*httpretry.StatusError](err)
			if isStatus && status.StatusCode == http.StatusPaymentRequired {
				return "", predicates.WithSnooze(err, 10*time.Minute) // without a visit, until the account is paid
			}
			return "an answer", err
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
		defer stop()
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(complete), time.Minute, 1, strategies.ReasonAware(httpretry.Classifier[string](), nil),
			asyncop.WithFailureSink(prompts.TakeFailure), asyncop.WithLogger(quiet))
		summary, err := delivery.Run(ctx, prompts, op, delivery.NewQueue[string](memory.Open(), "answers"), delivery.WithLogger(quiet))
		require.NoError(t, err)
		require.Equal(t, 1, summary.Done)
		require.Equal(t, 7, calls, "one call in ten minutes, for an hour")
		counts, err := prompts.Counts(t.Context())
		require.NoError(t, err)
		require.Zero(t, counts.Dead)
	})
}
