package strategies

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// NoRetry returns the strategy that switches retries off altogether. With NoRetry alone, and with [PolicyOf] of it, an operator
// allows a timeout of 0, which is no timeout.
func NoRetry[OUT any]() AsyncRetryStrategy[OUT] {
	return noRetry[OUT]{}
}

type noRetry[OUT any] struct{}

func (noRetry[OUT]) CanRetry(int) bool             { return false }
func (noRetry[OUT]) BackoffTime(int) time.Duration { return 0 }
func (noRetry[OUT]) MaxRetries() int               { return 0 }

func (noRetry[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] { return nil }
