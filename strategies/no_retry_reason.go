package strategies

import (
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// NoRetryReason is the reason why an element was not retried. Operators report it with
// elements that failed (asyncop.Failure).
type NoRetryReason = predicates.NoRetryReason

const (
	// Final means that the outcome did not ask for another attempt: it had no reason, or
	// was a rejection.
	Final = decision.Final
	// Refused means that there was a reason, but the strategy or a limit refused the
	// retry: all retries are used, the call must not happen twice, or the retry would
	// begin too late ([Policy.WithMaxDelay]).
	Refused = decision.Refused
	// Finishing means that there was a reason, but the operator had stopped retrying.
	Finishing = decision.Finishing
	// OverBudget means that the retry budget was spent.
	OverBudget = decision.OverBudget
	// TooManyWaiting means that the number of elements waiting for a retry was at its
	// limit.
	TooManyWaiting = decision.TooManyWaiting
	// Failed means that classifier, strategy or jitter failed: by an error, a panic or a
	// negative delay.
	Failed = decision.Failed
)
