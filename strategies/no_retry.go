package strategies

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// NoRetry returns the strategy that switches retries off altogether. Unlike one
// with 0 retries it tells the operator so beforehand: with NoRetry alone a
// timeout of 0, which is none, is legal. See [IsNoRetry].
func NoRetry[OUT any]() AsyncRetryStrategy[OUT] {
	return noRetry[OUT]{}
}

// IsNoRetry reports whether strategy came from [NoRetry]. It is false for one
// that wraps or embeds it, and for any other that merely never retries.
func IsNoRetry[OUT any](strategy AsyncRetryStrategy[OUT]) bool {
	_, ok := strategy.(noRetry[OUT])
	return ok
}

type noRetry[OUT any] struct{}

func (noRetry[OUT]) CanRetry(int) bool             { return false }
func (noRetry[OUT]) BackoffTime(int) time.Duration { return 0 }
func (noRetry[OUT]) MaxRetries() int               { return 0 }

func (noRetry[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] { return nil }
