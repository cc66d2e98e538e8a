package strategies

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// AsyncRetryStrategy decides whether and when an element is tried again.
//
// One strategy serves every element of an operator, so CanRetry and BackoffTime should depend on the attempt alone; one that
// shares state on purpose, such as a budget of retries, has to guard it. Operators call a strategy one call at a time, and
// several operators may share it. No method may block.
//
// Two more methods are read if a strategy has them, once, when the operator is built: Jitter() Jitter, whose answer spreads the
// delays, and MaxRetries() int, which asyncop.LatencyFirst needs. A wrapper has Unwrap() any instead of MaxRetries.
type AsyncRetryStrategy[OUT any] interface {
	// CanRetry reports whether an element may be tried again after currentAttempts attempts, counted from 1 (law A4). Once
	// false it stays false for all greater numbers.
	CanRetry(currentAttempts int) bool

	// BackoffTime returns the delay before the next attempt, at least 0, after currentAttempts attempts. It is asked only where
	// CanRetry is true, and always answers the same for the same number.
	BackoffTime(currentAttempts int) time.Duration

	// RetryPredicate returns what deserves another try; nil means nothing does. It is read once, when the operator is built.
	RetryPredicate() predicates.AsyncRetryPredicate[OUT]
}
