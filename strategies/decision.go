package strategies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Verdict is what becomes of an outcome.
type Verdict uint8

const (
	// Accepted means that there is no reason to try again: none at all, or a rejection.
	Accepted Verdict = iota
	// Retried means that there is another attempt, after Delay, unless Capped.
	Retried
	// Refused means that there is a reason, and the strategy says no.
	Refused
	// Finishing means that there is a reason, but nobody retries any more.
	Finishing
	// OverBudget means that the retry budget is spent.
	OverBudget
	// TooManyWaiting means that as many elements wait for a retry as may.
	TooManyWaiting
	// Failed means that classifier, strategy or jitter failed, by error, panic or a
	// nonsensical answer.
	Failed
)

// String returns the verdict in words, such as "over budget".
func (v Verdict) String() string {
	switch v {
	case Accepted:
		return "accepted"
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
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Decision is what an operator does about an outcome.
type Decision struct {
	Verdict Verdict

	// Reason is why the outcome deserves another try; if it was Accepted, none or a
	// rejection; none if the classifier Failed. It is worth a log line also if there is no retry.
	Reason predicates.Reason

	// Delay is the time to wait, if Retried. It never exceeds what the element has
	// left.
	Delay time.Duration
	// Capped tells that Delay was cut to what the element has left: no attempt can
	// follow, as none starts at or after the deadline (law A5). The element ends at
	// its deadline, or at once if the operator so chooses.
	Capped bool
	// Demanded is the wait that a server demands, in full also if Delay is cut; 0 if
	// none does. It is kept when the input ends, and over a restart.
	Demanded time.Duration

	// Err is the error of the outcome: the attempt's own, or the one that the
	// strategy translated it to. For Failed, the attempt's is joined to the failure.
	// Nil: the outcome are the results. Where there is no retry, the element ends
	// with it.
	Err error

	// Before, if not nil and there is an attempt, is called right before it. See
	// [Action.Before].
	Before func(ctx context.Context) error
}

// Situation is what a [Policy] has to know of the operator.
type Situation struct {
	Finishing bool       // nobody retries any more: end of input, cancel
	Waiting   int        // elements that wait for a retry, without this one
	Random    *rand.Rand // for jitter; nil: none is applied
}
