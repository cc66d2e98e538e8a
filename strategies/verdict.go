package strategies

import "github.com/weirflow/weir/internal/decision"

// Verdict is why an element had no other attempt. Operators report it with what they gave up (asyncop.Failure).
type Verdict uint8

const (
	// Final means that nothing asked for another attempt: the outcome had no reason, or a rejection.
	Final = Verdict(decision.Final)
	// Refused means that there was a reason, and the strategy said no: no retry is left, the call may not happen twice, or the
	// retry would begin too late ([Policy.WithMaxDelay]).
	Refused = Verdict(decision.Refused)
	// Finishing means that there was a reason, but the operator had stopped to retry.
	Finishing = Verdict(decision.Finishing)
	// OverBudget means that the retry budget was spent.
	OverBudget = Verdict(decision.OverBudget)
	// TooManyWaiting means that as many elements waited for a retry as may.
	TooManyWaiting = Verdict(decision.TooManyWaiting)
	// Failed means that classifier, strategy or jitter failed: by an error, a panic or a negative delay.
	Failed = Verdict(decision.Failed)
)

// String returns the verdict in words, such as "over budget".
func (v Verdict) String() string { return decision.Verdict(v).String() }
