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
	Final NoRetryReason = iota
	Refused
	Finishing
	OverBudget
	TooManyWaiting
	Failed
	Retried // there is another attempt, after Delay, unless Capped
)

// WantedRepeat reports whether a predicate of a FLIP-232 strategy asked for another attempt that
// was not made. Such a predicate states that the call may be repeated, and names no reason.
func WantedRepeat(v NoRetryReason, reason predicates.Reason) bool {
	switch v {
	case Refused, Finishing, OverBudget, TooManyWaiting:
		return reason.IsZero()
	default: // nothing asked
		return false
	}
}

// Decision is what an operator does about an outcome.
type Decision struct {
	// NoRetryReason is Retried, or the reason why there is no retry.
	NoRetryReason NoRetryReason

	// Reason is why the outcome deserves another try; if it is Final, none or a
	// rejection; none if the classifier Failed. It is worth a log line also if there is no retry.
	Reason predicates.Reason

	// Delay is the time to wait, if Retried. It never exceeds what the element has left.
	Delay time.Duration
	// Capped says that Delay was cut to what the element has left: no attempt can follow, as none starts at or after the
	// deadline (law A5). The element ends at its deadline, or at once if the operator so chooses.
	Capped bool
	// NeedsBudget reports that the retry is to be taken from a retry budget, if there is one. It
	// is false for a retry that will not be made, and for a reason that is always retried.
	NeedsBudget bool
	// Demanded is the wait that a server demands, in full also if Delay is cut; 0 if
	// none does. It is kept when the input ends, and over a restart.
	Demanded time.Duration

	// Err is the error of the outcome: the attempt's own, or the one that the strategy gave in its place. For Failed, the
	// attempt's is joined to the failure. Nil: the outcome is the results. Without a retry, the element ends with it.
	Err error

	// Before, if not nil and there is an attempt, is called right before it: see strategies.Action.
	Before func(ctx context.Context) error
}

// NoDeadline as the Remaining of an attempt is the time left to an element without a timeout.
const NoDeadline = time.Duration(math.MaxInt64)

// Situation describes an operator to [Steps].
type Situation struct {
	Finishing bool       // retries have ended: the input has ended, or the operator is cancelled
	Waiting   int        // elements that wait for a retry, without this one
	Random    *rand.Rand // for the jitter; nil if none is applied
}

// Answer is the answer of a strategy.
type Answer struct {
	Action Action
	Err    error
}
