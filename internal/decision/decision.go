package decision

import (
	"context"
	"fmt"
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

// NoRetryReason is the reason why there is no retry: see strategies.NoRetryReason. A Decision has
// two more values, which are not reasons: Retried and Asked.
type NoRetryReason uint8

const (
	// Final means that nothing asks for another attempt: the outcome has no reason, or a rejection.
	Final NoRetryReason = iota
	// Refused means that there is a reason, and the strategy says no.
	Refused
	// Finishing means that there is a reason, but the operator has stopped to retry.
	Finishing
	// OverBudget means that the retry budget is spent.
	OverBudget
	// TooManyWaiting means that as many elements wait for a retry as may.
	TooManyWaiting
	// Failed means that classifier, strategy or jitter failed, by error, panic or a nonsensical answer.
	Failed
	// Retried means that there is another attempt, after Delay, unless Capped.
	Retried
	// Asked means that the strategy is to be asked elsewhere, since it may block: see Steps.Decide.
	Asked
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

// String returns the reason in words, such as "over budget".
func (v NoRetryReason) String() string {
	switch v {
	case Final:
		return "final"
	case Retried:
		return "retried"
	case Refused:
		return "refused"
	case Finishing:
		return "finishing"
	case OverBudget:
		return "over budget"
	case TooManyWaiting:
		return "too many waiting"
	case Failed:
		return "decision failed"
	case Asked:
		return "asked"
	}
	return fmt.Sprintf("NoRetryReason(%d)", uint8(v))
}

// Decision is what an operator does about an outcome.
type Decision struct {
	// NoRetryReason is Retried or Asked, or the reason why there is no retry.
	NoRetryReason NoRetryReason

	// Reason is why the outcome deserves another try; if it is Final, none or a
	// rejection; none if the classifier Failed. It is worth a log line also if there is no retry.
	Reason predicates.Reason

	// Delay is the time to wait, if Retried. It never exceeds what the element has left.
	Delay time.Duration
	// Capped says that Delay was cut to what the element has left: no attempt can follow, as none starts at or after the
	// deadline (law A5). The element ends at its deadline, or at once if the operator so chooses.
	Capped bool
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

// Situation is what [Steps] have to know of the operator.
type Situation struct {
	Finishing bool       // no retry follows any more: end of input, cancel
	Waiting   int        // elements that wait for a retry, without this one
	Random    *rand.Rand // for jitter; nil: none is applied

	MayRetry func() bool            // takes a retry out of a budget; nil: there is none
	Outage   bool                   // the attempt met one: it takes no budget
	Found    func() (isOutage bool) // called when the reason is known, and sets Outage; nil: nobody wants to know
	Context  func() context.Context // of the question to the strategy; nil: that of Decide

	Beside bool    // a strategy that may block is not asked: the answer is Asked
	Answer *Answer // of a strategy that was asked elsewhere; nil: it was not
}

// Answer is that of a strategy.
type Answer struct {
	Action Action
	Err    error
}
