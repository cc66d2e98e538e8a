package decision

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Action is strategies.Action, field by field.
type Action struct {
	Retry    bool
	Delay    time.Duration
	Demanded bool
	Err      error
	Before   func(ctx context.Context) error
}

// NoRetryReason is the reason against a retry. Package strategies describes its values. A
// Decision may also have the value Retried: there is a retry.
type NoRetryReason = predicates.NoRetryReason

// The values, in the order of their texts: see noRetryReasons in package predicates.
const (
	Final          NoRetryReason = iota // no reason for a retry
	Refused                             // by the strategy
	Finishing                           // the input has ended
	OverBudget                          // of retries
	TooManyWaiting                      // elements, for a retry
	Failed                              // the policy has failed
	Retried                             // another attempt follows after Delay, but see Capped
)

// hadReason reports whether there was a reason to retry, although v is against the retry.
func hadReason(v NoRetryReason) bool {
	switch v {
	case Refused, Finishing, OverBudget, TooManyWaiting:
		return true
	default:
		return false
	}
}

// Decision is the decision after an attempt.
type Decision struct {
	// NoRetryReason is Retried, or the reason against a retry.
	NoRetryReason NoRetryReason

	// Reason is the reason for a retry. It is zero or a rejection for Final, and zero if
	// the classifier has Failed.
	Reason predicates.Reason

	// Delay is the wait before the retry, at most the time that the element has left.
	Delay time.Duration
	// Capped reports that Delay was cut to the time that the element has left. The retry
	// would come at the deadline or later, where no attempt starts (law A5). So the
	// element waits for its deadline, or times out at once (WithEarlyTimeout).
	//
	// There are two exceptions. The element gets an attempt if the input ends during the
	// wait, or if an outage of the backend removes the deadline
	// (WithTimeoutFromFirstAttempt).
	Capped bool
	// NeedsBudget reports that the retry must be taken from the retry budget, if there is
	// one. It is false without a retry, for a reason that is always retried, and if
	// Capped is set.
	NeedsBudget bool
	// Demanded is the wait that a server demands, or 0. It is not cut, and continues
	// after the end of the input and after a restart.
	Demanded time.Duration

	// Err is Action.Err or, if that is nil, the error of the attempt. For Failed, it joins
	// the policy's failure and the attempt's error. Without a retry, the element ends with
	// Err or, if Err is nil, with the results.
	Err error

	// Before runs directly before the retry: see strategies.Action. It may be nil.
	Before func(ctx context.Context) error
}

// NoDeadline is Remaining without a timeout.
const NoDeadline = time.Duration(math.MaxInt64)

// Situation is the state of an operator for [Steps].
type Situation struct {
	Finishing bool       // the input has ended, and with it retries
	Waiting   int        // other elements that wait for a retry
	Random    *rand.Rand // for the jitter, or nil
}

// Answer is the answer of a strategy.
type Answer struct {
	Action Action
	Err    error
}
