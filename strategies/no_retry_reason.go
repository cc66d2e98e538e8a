package strategies

import (
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// NoRetryReason is why an element was not retried. Operators report it with failed
// elements (asyncop.Failure).
type NoRetryReason = predicates.NoRetryReason

const (
	// Final means that the outcome had no reason, or a rejection.
	Final = decision.Final
	// Refused means that the strategy or a limit refused the retry: all retries are used,
	// the call must not happen twice, or the retry would begin too late
	// ([Policy.WithMaxDelay]).
	Refused = decision.Refused
	// Finishing means that the operator had stopped retrying.
	Finishing = decision.Finishing
	// OverBudget means that the retry budget was spent.
	OverBudget = decision.OverBudget
	// TooManyWaiting means that the elements waiting for a retry were at their limit.
	TooManyWaiting = decision.TooManyWaiting
	// Failed means that classifier, strategy or jitter returned an error, panicked or
	// returned a negative delay.
	Failed = decision.Failed
)
