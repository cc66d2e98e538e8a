package asyncop

import (
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Failure describes an element that was given up, to the failure sink
// ([WithFailureSink]).
type Failure[IN any] struct {
	Element      IN
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or the reason of the operator's end
	Abandoned    bool          // the end of the operator cut the element off; Err is the reason
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // start of the first attempt, or zero
	LastAttempt  time.Time     // start of the last attempt, or zero

	// NoRetryReason is the reason why the element was not retried: Refused (retries are
	// used up, or the strategy does not allow one), Finishing (the input has ended: see
	// WithDrainRetries), OverBudget, TooManyWaiting, or Failed. It is Final if no
	// predicate asked for another attempt, or if the element ended otherwise, such as by
	// its timeout.
	NoRetryReason strategies.NoRetryReason

	// Reason is the reason of its last outcome, and Reasons are the reasons of its
	// retries, if a reason-aware strategy has a classifier. A rejection
	// ([predicates.NewRejection]) means that the call was refused for good.
	Reason  predicates.Reason
	Reasons predicates.ReasonSet

	// InDoubt is true if an attempt may have taken effect: see [TimeoutError.InDoubt].
	// Call UnsafeToRepeat before you send the element again.
	InDoubt bool

	// Deduplicated is true if the element is in doubt, and the server recognises repeats
	// of all requests that may have taken effect ([predicates.WithDeduplicated]). Sending
	// them again with the same ids is harmless, as long as the server remembers them.
	// Calls made before a restart are not deduplicated.
	Deduplicated bool

	policy idempotence
}

// UnsafeToRepeat reports whether the element must not be sent again before the effect of
// its call was checked. It is true if all of these hold:
//
//   - The call is in doubt (InDoubt): it may have taken effect.
//   - The call is not idempotent. An element that implements [predicates.Idempotent]
//     decides this. For other elements the policy of the operator does
//     (strategies.Policy.IdempotentIf), and by default no call is idempotent.
//   - No predicate of a FLIP-232 strategy asked for another attempt after the last one. A
//     predicate that asks for a repeat states that such calls may be repeated, even if
//     the retries are used up. The reasons of a reason-aware strategy do not state this.
//
// A FLIP-232 strategy cannot prove whether a call had an effect, so with such a strategy
// each failure is in doubt unless its stage is reported as ClientDispatch. If the calls
// are idempotent, declare it with [predicates.Idempotent] or
// strategies.PolicyOf(strategy).Idempotent().
func (f Failure[IN]) UnsafeToRepeat() bool {
	return unsafeToRepeat(f.InDoubt, f.NoRetryReason, f.Reason, f.policy, f.Element)
}
