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

// NoRetryReason is the reason why there is no retry. The constants of package strategies
// describe its values. A Decision has another value, which is not a reason: Retried.
type NoRetryReason = predicates.NoRetryReason

// The values of NoRetryReason, in the order of its texts.
const (
	Final          NoRetryReason = iota // no reason for a retry
	Refused                             // by the strategy
	Finishing                           // the input has ended
	OverBudget                          // of retries
	TooManyWaiting                      // elements, for a retry
	Failed                              // the policy has failed
	Retried                             // another attempt is made after Delay; see Capped for an exception
)

// hadReason reports whether there was a reason for the retry that was not made.
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
	// NoRetryReason is Retried, or the reason why there is no retry.
	NoRetryReason NoRetryReason

	// Reason is the reason for a retry. For Final it is zero or a rejection. It is zero
	// if the classifier has Failed.
	Reason predicates.Reason

	// Delay is the wait before the retry, at most the time that the element has left.
	Delay time.Duration
	// Capped reports that the retry would come at the deadline or later, where no attempt
	// starts (law A5), so Delay was cut to the time that the element has left. The
	// element waits for its deadline as in a back-off, and times out there, or at once
	// with WithEarlyTimeout. Two events during this wait give it an attempt all the same.
	// The end of the input gives one last attempt to each element in back-off. An outage
	// of the backend removes the deadline (WithTimeoutFromFirstAttempt).
	Capped bool
	// NeedsBudget reports that the retry must be taken from the retry budget, if there is
	// one. It is false for a retry that will not be made, and for a reason that is always
	// retried.
	NeedsBudget bool
	// Demanded is the wait that a server demands, or 0. It is not cut. The wait continues
	// after the end of the input, and after a restart.
	Demanded time.Duration

	// Err is the error of the attempt, or the error that the strategy returned in its
	// place. For Failed, it joins the failure of the policy and the error of the attempt.
	// Without a retry, the element ends with Err or, if it is nil, with the results.
	Err error

	// Before is called directly before the retry: see strategies.Action. It may be nil.
	Before func(ctx context.Context) error
}

// NoDeadline is the Remaining of an attempt whose element has no timeout.
const NoDeadline = time.Duration(math.MaxInt64)

// Situation describes an operator to [Steps].
type Situation struct {
	Finishing bool       // retries have ended, because the input has ended
	Waiting   int        // elements that wait for a retry, without this one
	Random    *rand.Rand // for the jitter, or nil without one
}

// Answer is the answer of a strategy.
type Answer struct {
	Action Action
	Err    error
}
