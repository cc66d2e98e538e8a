package asyncop

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/strategies"
)

// policy is the operator's policy for failures: a *decision.Steps. It is nil in a failure
// that no operator has made.
type policy interface {
	// IsIdempotent is user code.
	IsIdempotent(element any) bool
	// AllowsRepeat reports whether the call may be repeated, because a FLIP-232 predicate
	// has asked for a retry that was not made.
	AllowsRepeat(noRetry strategies.NoRetryReason) bool
	HasReasons() bool
}

func unsafeToRepeat(inDoubt bool, noRetry strategies.NoRetryReason, p policy, element any) bool {
	if !inDoubt || p != nil && p.AllowsRepeat(noRetry) {
		return false
	}
	return !isIdempotent(p, element)
}

// isIdempotent returns false if the policy panics.
func isIdempotent(p policy, element any) (idempotent bool) {
	if p == nil {
		return false
	}
	_ = call.OffLoop(func() error { idempotent = p.IsIdempotent(element); return nil })
	return idempotent
}
