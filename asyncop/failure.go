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
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or the cause of the operator's end
	Abandoned    bool          // the end of the operator, whose reason is Err, cut the element off
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // start of the first attempt, or zero
	LastAttempt  time.Time     // start of the last attempt, or zero

	// NoRetryReason is why the element was not retried: Refused (retries are used up, or
	// the strategy does not allow one), Finishing (the input has ended: see
	// WithDrainRetries), OverBudget, TooManyWaiting, or Failed. Otherwise, such as after
	// a timeout, it is Final.
	NoRetryReason strategies.NoRetryReason

	// Reason is the reason of its last outcome, or zero. The classifier of a reason-aware
	// strategy has named it. Without one that knows the outcome, it is the error's own
	// reason: by [predicates.WithReason], or by package httpretry, which knows HTTP
	// statuses and errors of connections. A rejection ([predicates.NewRejection]) means
	// that the call was refused for good, without effect.
	Reason predicates.Reason
	// Reasons are the reasons of its retries, from a reason-aware strategy.
	Reasons predicates.ReasonSet

	// Demanded is how long the service asked not to be called, by Retry-After or a
	// pushback in Err, or 0.
	Demanded time.Duration

	// BackendDown is true if the element waited for its backend until its time ran out:
	// Err is a *TimeoutError that matches [ErrBackendDown]. A message that was never
	// called, or only throttled, is released instead. OthersAnswered is true if, besides,
	// the service has answered other calls between this failure of a message and its
	// failure of the same kind before.
	BackendDown, OthersAnswered bool

	// InDoubt is true if an attempt may have taken effect: see [TimeoutError.InDoubt].
	InDoubt bool

	// Deduplicated is true if the element is in doubt, and the server recognises repeats
	// of all requests that may have taken effect ([predicates.WithDeduplicated]). They
	// may be sent again with the same ids, as long as the server remembers them. Calls
	// before a restart are not deduplicated.
	Deduplicated bool

	policy policy
}

// UnsafeToRepeat reports whether the effect of the call must be checked before the
// element is sent again. It is true if all of these hold:
//
//   - The call is in doubt (InDoubt): it may have taken effect.
//   - The call is not idempotent. The element decides this by [predicates.Idempotent], or
//     the policy by strategies.Policy.IdempotentIf. By default calls are not idempotent.
//   - No predicate of a FLIP-232 strategy asked for another attempt after the last one. A
//     predicate that asks for a repeat allows it, even if the retries are used up.
//     Reasons of a policy do not.
//
// With a FLIP-232 strategy or NoRetry, each failure is in doubt unless its stage is
// ClientDispatch or its Reason proves the contrary. Declare idempotent calls with
// [predicates.Idempotent] or strategies.PolicyOf(strategy).Idempotent().
func (f Failure[IN]) UnsafeToRepeat() bool {
	return unsafeToRepeat(f.InDoubt, f.NoRetryReason, f.policy, f.Element)
}
