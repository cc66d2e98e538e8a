package predicates

import "fmt"

// NoRetryReason is why an element was not retried. Package strategies has its constants,
// such as strategies.OverBudget.
type NoRetryReason uint8

var noRetryReasons = [...]string{
	"final", "refused", "finishing", "over budget", "too many waiting", "decision failed", "retried",
}

// String returns the reason in words, such as "over budget".
func (r NoRetryReason) String() string {
	if int(r) < len(noRetryReasons) {
		return noRetryReasons[r]
	}
	return fmt.Sprintf("NoRetryReason(%d)", uint8(r))
}
