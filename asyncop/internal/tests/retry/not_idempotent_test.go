package retry_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// failureOf returns the error of an operator whose only element ends with err.
func failureOf(t *testing.T, timeout time.Duration, policy *strategies.Policy[int], err error) error {
	t.Helper()
	op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(_ context.Context, _ string, result asyncop.ResultFuture[int]) error {
		result.CompleteExceptionally(err)
		return nil
	}), timeout, 1, policy, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for _, err := range op.Results(func(yield func(string) bool) { yield("a") }) {
		require.Error(t, err)
	}
	return op.Wait()
}

// If a reason allows a retry of idempotent calls only and the call is not idempotent, the
// message explains how to allow it.
func TestElementErrorNamesIdempotent(t *testing.T) {
	overloaded := predicates.WithReason(errors.New("503"), predicates.NewReason("OVERLOADED", false, false))
	policy := strategies.ReasonAware(predicates.Named[int](), nil)
	require.EqualError(t, withoutElapsed(failureOf(t, time.Minute, policy, overloaded)),
		`asyncop: element "a" failed after 1 attempt, not retried after OVERLOADED, which allows it for idempotent calls only `+
			`(see strategies.Policy.Idempotent): OVERLOADED: 503`)

	none := strategies.ReasonAware(predicates.Named[int](), strategies.BestEffort[int]().WithMaxRetries(0))
	require.NotContains(t, failureOf(t, time.Minute, none.Idempotent(), overloaded).Error(), "Idempotent", "it is")
	safe := predicates.WithReason(errors.New("429"), predicates.NewReason("SAFE", true, false))
	require.NotContains(t, failureOf(t, time.Minute, none, safe).Error(), "Idempotent", "any call may be repeated")
}

func withoutElapsed(err error) error {
	failed, ok := errors.AsType[*asyncop.ElementError](err)
	if !ok {
		return err
	}
	copied := *failed
	copied.Elapsed = 0
	return errors.New(removeFirst(copied.Error(), " in 0s"))
}

func removeFirst(s, part string) string {
	for i := range s {
		if len(s) >= i+len(part) && s[i:i+len(part)] == part {
			return s[:i] + s[i+len(part):]
		}
	}
	return s
}
