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

	// Reason is the reason of its last outcome, or zero. The classifier of a reason-aware
	// strategy has named it. If the classifier does not know the outcome, or the strategy
	// does not have reasons (FLIP-232, NoRetry), it is the reason that the error has of
	// itself: by [predicates.WithReason], or by package httpretry, which knows HTTP
	// statuses and errors of connections. A rejection ([predicates.NewRejection]), such
	// as a status of 402, means that the call was refused for good, without effect.
	Reason predicates.Reason
	// Reasons are the reasons of its retries, if a reason-aware strategy has named them.
	Reasons predicates.ReasonSet

	// Demanded is how long the service asked not to be called, by Retry-After or a
	// pushback in Err; 0 if it did not ask.
	Demanded time.Duration

	// BackendDown is true if the element waited for its backend until its time ran out:
	// Err is a *TimeoutError that matches [ErrBackendDown]. The element was called
	// before, or is not a message: a message that was never called, or only throttled, is
	// released, and has not failed. OthersAnswered is true if, besides, the service has answered other
	// calls between this failure of a message and its failure of the same kind before.
	BackendDown, OthersAnswered bool

	// InDoubt is true if an attempt may have taken effect: see [TimeoutError.InDoubt].
	// Call UnsafeToRepeat before you send the element again.
	InDoubt bool

	// Deduplicated is true if the element is in doubt, and the server recognises repeats
	// of all requests that may have taken effect ([predicates.WithDeduplicated]). Sending
	// them again with the same ids is harmless, as long as the server remembers them.
	// Calls made before a restart are not deduplicated.
	Deduplicated bool

	policy policy
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
// A FLIP-232 strategy does not know whether a call had an effect. With such a strategy,
// and with NoRetry, each failure is in doubt unless its stage is ClientDispatch or its
// Reason proves the contrary. If the calls are idempotent, declare it with
// [predicates.Idempotent] or strategies.PolicyOf(strategy).Idempotent().
func (f Failure[IN]) UnsafeToRepeat() bool {
	return unsafeToRepeat(f.InDoubt, f.NoRetryReason, f.policy, f.Element)
}
