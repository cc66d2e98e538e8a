package strategies_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// Classifiers name an attempt timeout, so calls that may be repeated are repeated.
func TestReasonAware_AttemptTimeout(t *testing.T) {
	unknown := func(error) uint32 { return 2 } // status.Code of an error that is not gRPC's
	for name, classify := range map[string]predicates.Classifier[string]{
		"netretry":  netretry.Classifier[string](),
		"httpretry": httpretry.Classifier[string](),
		"grpcretry, netretry": predicates.Classifiers(
			grpcretry.Classifier[string](unknown), netretry.Classifier[string]()),
	} {
		for stage, want := range map[predicates.Stage]predicates.Reason{
			predicates.Unreported:     netretry.TimedOut,
			predicates.NetworkTime:    netretry.TimedOut,
			predicates.ClientDispatch: netretry.NotSent,
		} {
			timeout := &asyncop.AttemptTimeoutError{Limit: time.Second, Attempt: 1}
			attempt := predicates.Attempt[string]{Number: 1, Err: timeout, Stage: stage}
			policy := strategies.ReasonAware(classify, nil)
			require.Equal(t, want, strategiestest.Decide(policy, attempt).Reason, "%s %v", name, stage)
			require.True(t, strategiestest.Decide(policy.Idempotent(), attempt).Retry, "%s %v", name, stage)
			require.Equal(t, want == netretry.NotSent, strategiestest.Decide(policy, attempt).Retry, "%s %v", name, stage)
		}
	}
}
