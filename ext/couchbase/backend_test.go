package couchbase_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
)

// callFailing makes an operator with a backend call a function that fails for a reason,
// and returns the statistics of the backend.
func callFailing(reason predicates.Reason) backend.Stats {
	b := backend.New("couchbase")
	fail := asyncop.Blocking(func(context.Context, int) (int, error) {
		return 0, predicates.WithReason(errors.New("failed"), reason)
	})
	op := asyncop.OrderedWait(fail, time.Hour, 1, asyncop.WithBackend(b),
		asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
	for range op.Results(slices.Values([]int{1, 2, 3, 4, 5})) {
		continue
	}
	return b.Stats()
}

// A backend goes down if its service is unavailable. The core knows the reasons by name
// and properties only.
func TestReasons_OfABackend(t *testing.T) {
	isLoss := map[string]bool{
		"SOCKET_NOT_AVAILABLE": true, "SERVICE_NOT_AVAILABLE": true, "NODE_NOT_AVAILABLE": true,
		"KV_TEMPORARY_FAILURE": true, "SOCKET_CLOSED_WHILE_IN_FLIGHT": true, "CIRCUIT_BREAKER_OPEN": true,
		"PIPELINE_OVERLOADED": true, "UNAMBIGUOUS_TIMEOUT": true, "TIMED_OUT_IN_FLIGHT": true,
	}
	for _, reason := range []string{
		"SOCKET_NOT_AVAILABLE", "SERVICE_NOT_AVAILABLE", "NODE_NOT_AVAILABLE", "KV_TEMPORARY_FAILURE",
		"SOCKET_CLOSED_WHILE_IN_FLIGHT", "CIRCUIT_BREAKER_OPEN", "PIPELINE_OVERLOADED", "UNAMBIGUOUS_TIMEOUT",
		"TIMED_OUT_IN_FLIGHT", "KV_LOCKED", "KV_NOT_MY_VBUCKET", "QUERY_INDEX_NOT_FOUND",
	} {
		isDown := callFailing(named(t, reason)).State == backend.Down
		assert.Equal(t, isLoss[reason], isDown, reason)
	}
}
