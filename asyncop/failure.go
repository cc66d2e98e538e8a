package asyncop

import (
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Failure describes to the failure sink ([WithFailureSink]) an element that was given up.
type Failure[IN any] struct {
	Element      IN
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or the reason why the operator ended
	Abandoned    bool          // it did not fail: the operator ended, and cut it off; Err is the reason
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // when its first attempt began; zero if none did
	LastAttempt  time.Time     // when its last attempt began; zero if none did

	// NoRetryReason is the reason why the element was not retried: Refused (no retry is
	// left, or the strategy does not allow it), Finishing (the input has ended: see
	// WithDrainRetries), OverBudget, TooManyWaiting, or Failed. It is Final if no
	// predicate asked for another attempt, or if the element ended otherwise, such as by
	// its timeout.
	NoRetryReason strategies.NoRetryReason

	// Reason is the reason of its last outcome, and Reasons are the reasons of the
	// retries that were begun, if a reason-aware strategy has a classifier that names
	// them. A rejection ([predicates.NewRejection]) means that the call was refused for
	// good.
	Reason  predicates.Reason
	Reasons predicates.ReasonSet

	// InDoubt is true if an attempt may have taken effect: see [TimeoutError.InDoubt].
	// Call UnsafeToRepeat before you send the element again.
	InDoubt bool

	// Deduplicated is true if the element is in doubt, and the server recognises repeats
	// of all requests that may have taken effect ([predicates.WithDeduplicated]): sending
	// them again under the same ids is harmless, as long as the server remembers them.
	// Calls made before a restart are not deduplicated.
	Deduplicated bool

	policy idempotence
}

// UnsafeToRepeat reports whether the element must not be sent again before somebody has
// checked what its call did. It is true if all of the following hold:
//
//   - The call is in doubt (InDoubt): it may have taken effect.
//   - The call is not idempotent. An element that implements [predicates.Idempotent] decides
//     that. For other elements the policy of the operator does (strategies.Policy.IdempotentIf),
//     whose default is that no call is idempotent.
//   - No predicate of a FLIP-232 strategy has asked for another attempt after the last one. A
//     predicate that asks for a repeat states that such calls may be repeated, even if the retries
//     are used up. A reason-aware strategy names reasons instead, which do not state this.
//
// A FLIP-232 strategy cannot prove whether a call had an effect, so under such a strategy
// each failure is in doubt unless its stage is reported as ClientDispatch. If the calls
// are idempotent, declare it with [predicates.Idempotent] or
// strategies.PolicyOf(strategy).Idempotent().
func (f Failure[IN]) UnsafeToRepeat() bool {
	return unsafeToRepeat(f.InDoubt, f.NoRetryReason, f.Reason, f.policy, f.Element)
}
