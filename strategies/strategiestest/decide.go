package strategiestest

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Decision is the decision of an operator after an attempt.
type Decision struct {
	Retry         bool                     // another attempt follows, after Delay
	Delay         time.Duration            // before jitter
	Late          bool                     // the strategy retries, but the element's time ends earlier
	NoRetryReason strategies.NoRetryReason // why there is no retry; not set if Retry or Late
	Reason        predicates.Reason        // as returned by the classifier; a rejection ends the element
	Stage         predicates.Stage         // of the attempt, as set by the classifier

	// Before, unless nil, is called right before the next attempt.
	Before func(ctx context.Context) error

	// Err is the present error of the element, with which it fails without Retry, or nil
	// for results.
	Err error
}

// String returns the decision without its error, such as "retry after 1ms (BUSY)" or "no
// retry: refused (BUSY)".
func (d Decision) String() string {
	reason := ""
	if !d.Reason.IsZero() {
		reason = fmt.Sprintf(" (%v)", d.Reason)
	}
	switch {
	case d.Retry:
		return fmt.Sprintf("retry after %v%s", d.Delay, reason)
	case d.Late:
		return "no retry: no time is left" + reason
	}
	return fmt.Sprintf("no retry: %v%s", d.NoRetryReason, reason)
}

// Decide returns the decision of an operator with this strategy or policy after the
// attempt a. It calls the classifier or the predicates, then the strategy, and then
// applies the limits of the policy. A budget is credited and charged.
//
//	d := strategiestest.Decide(policy, predicates.Attempt[Row]{Err: ErrBusy})
//
// Set the fields of a that your code reads, usually Err or Results. A Number of 0 means
// 1, and a Remaining of 0 means an element without timeout. Decide sets Idempotent from
// Input, by the policy.
func Decide[OUT any](strategy strategies.Retry[OUT], a predicates.Attempt[OUT]) Decision {
	policy := decision.StepsOf(strategies.PolicyOf(strategy))
	a.Number = max(1, a.Number)
	if a.Remaining == 0 {
		a.Remaining = math.MaxInt64
	}
	a.Idempotent = policy.IsIdempotent(a.Input)
	if a.Err != nil && !policy.ConsidersErrors || a.Err == nil && !policy.ConsidersResults {
		return Decision{Stage: a.Stage, Err: a.Err}
	}
	d := policy.Decide(context.Background(), &a, &decision.Situation{})
	made := Decision{Delay: max(d.Delay, d.Demanded), Reason: d.Reason, Stage: a.Stage, Before: d.Before, Err: d.Err}
	if d.NoRetryReason == decision.Retried {
		made.Retry, made.Late = !d.Capped, d.Capped
	} else {
		made.NoRetryReason = d.NoRetryReason
	}
	return made
}
