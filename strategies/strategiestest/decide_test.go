package strategiestest

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type attempt = predicates.Attempt[int]

var exceptionMatched = predicates.NewReason("EXCEPTION_MATCHED", false, false)

func TestDecide(t *testing.T) {
	busy := predicates.NewReason("BUSY", false, false)
	rejected := predicates.NewRejection("REJECTED")
	policy := strategies.ReasonAware(predicates.Classifiers(
		predicates.ByException[int](predicates.ErrorIs(io.EOF), busy),
		predicates.ByException[int](predicates.ErrorIs(io.ErrClosedPipe), rejected)), nil).
		IdempotentIf(func(input any) bool { return input == "get" })
	sent := &predicates.StageError{Stage: predicates.ResponseReceived, Err: io.EOF}
	for name, tt := range map[string]struct {
		strategy strategies.Retry[int]
		a        attempt
		want     Decision
		text     string
	}{
		"retried": {
			policy,
			attempt{Input: "get", Err: io.EOF},
			Decision{Retry: true, Delay: time.Millisecond, Reason: busy, Stage: predicates.NetworkTime, Err: io.EOF},
			"retry after 1ms (BUSY)",
		},
		"third attempt": {
			policy,
			attempt{Input: "get", Err: sent, Number: 3},
			Decision{Retry: true, Delay: 4 * time.Millisecond, Reason: busy, Stage: predicates.ResponseReceived, Err: sent},
			"retry after 4ms (BUSY)",
		},
		"not idempotent": {
			policy,
			attempt{Input: "put", Err: io.EOF, Idempotent: true}, // which the policy decides
			Decision{NoRetryReason: strategies.Refused, Reason: busy, Stage: predicates.NetworkTime, Err: io.EOF},
			"no retry: refused (BUSY)",
		},
		"no time": {
			policy,
			attempt{Input: "get", Err: io.EOF, Remaining: 1},
			Decision{Late: true, Delay: 1, Reason: busy, Stage: predicates.NetworkTime, Err: io.EOF},
			"no retry: no time is left (BUSY)",
		},
		"rejected": {
			policy,
			attempt{Err: io.ErrClosedPipe},
			Decision{Reason: rejected, Err: io.ErrClosedPipe},
			"no retry: final (REJECTED)",
		},
		"unknown": {policy, attempt{Err: io.ErrNoProgress}, Decision{Err: io.ErrNoProgress}, "no retry: final"},
		"results": {policy, attempt{Results: []int{1}}, Decision{}, "no retry: final"},
		"no retry is left": {
			strategies.FixedDelay[int](3, 0).RetryIfException(predicates.HasException),
			attempt{Err: io.EOF, Number: 4},
			Decision{NoRetryReason: strategies.Refused, Reason: exceptionMatched, Stage: predicates.NetworkTime, Err: io.EOF},
			"no retry: refused (EXCEPTION_MATCHED)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(tt.strategy, tt.a)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.text, got.String())
		})
	}
}

func TestDecideHandsOnBefore(t *testing.T) {
	errBefore := errors.New("before")
	classify := func(*attempt) (predicates.Reason, bool) { return predicates.CircuitBreakerOpen, true }
	d := Decide(strategies.ReasonAware(classify, strategies.ReasonStrategyFunc[int](
		func(context.Context, *attempt) (strategies.Action, error) {
			return strategies.Action{Retry: true, Before: func(context.Context) error { return errBefore }}, nil
		})), attempt{Err: io.EOF})
	require.True(t, d.Retry)
	require.Equal(t, errBefore, d.Before(t.Context()))
}
