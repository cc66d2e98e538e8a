package strategies

import (
	"fmt"
	"math"

	"github.com/weirflow/weir/predicates"
)

// Unlimited as maxRetries allows as many retries as the element's timeout
// leaves room for.
const Unlimited = math.MaxInt

// settings is what the built-in strategies have in common.
type settings[OUT any] struct {
	maxRetries int
	result     predicates.ResultPredicate[OUT]
	exception  predicates.ExceptionPredicate
	jitter     Jitter
}

// newSettings panics in constructor's name if maxRetries is negative.
func newSettings[OUT any](constructor string, maxRetries int) settings[OUT] {
	if maxRetries < 0 {
		panic(fmt.Sprintf("strategies: %s: negative maxRetries: %d", constructor, maxRetries))
	}
	return settings[OUT]{maxRetries: maxRetries}
}

// MaxRetries returns the number of retries allowed; an element makes one call
// more than that.
func (s *settings[OUT]) MaxRetries() int { return s.maxRetries }

// Jitter returns what WithJitter set, or nil: no jitter.
func (s *settings[OUT]) Jitter() Jitter { return s.jitter }

// CanRetry reports whether currentAttempts ≤ MaxRetries (law A4).
func (s *settings[OUT]) CanRetry(currentAttempts int) bool {
	return currentAttempts <= s.maxRetries
}

// RetryPredicate returns the predicates set by RetryIfResult and
// RetryIfException, or nil if none is set: then nothing is retried.
func (s *settings[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	if s.result == nil && s.exception == nil {
		return nil
	}
	return predicates.RetryIf(s.result, s.exception)
}
