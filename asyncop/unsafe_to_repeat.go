package asyncop

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// idempotence decides which calls are idempotent. It is user code, and only
// UnsafeToRepeat calls it. It is nil if the operator does not have a policy.
type idempotence interface{ IsIdempotent(element any) bool }

// unsafeToRepeat implements Failure.UnsafeToRepeat.
func unsafeToRepeat(inDoubt bool, noRetry strategies.NoRetryReason, reason predicates.Reason, policy idempotence, element any) bool {
	return inDoubt && !decision.WantedRepeat(noRetry, reason) && !isIdempotent(policy, element)
}

// isIdempotent returns false if the policy panics.
func isIdempotent(policy idempotence, element any) (idempotent bool) {
	if policy == nil {
		return false
	}
	_ = call.OffLoop(func() error { idempotent = policy.IsIdempotent(element); return nil })
	return idempotent
}
