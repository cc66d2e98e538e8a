package strategies

import (
	"fmt"
	"math"

	"github.com/weirflow/weir/predicates"
)

// Unlimited as maxRetries allows as many retries as the element's timeout leaves room for.
const Unlimited = math.MaxInt

// settings is what the strategies of this package have in common. S is the strategy's
// own type, of which the setters return a copy.
type settings[OUT, S any] struct {
	maxRetries int
	result     predicates.ResultPredicate[OUT]
	exception  predicates.ExceptionPredicate
	jitter     Jitter
	with       func(changed settings[OUT, S]) S // the strategy with other settings
}

// newSettings panics in constructor's name if maxRetries is negative.
func newSettings[OUT, S any](constructor string, maxRetries int, with func(settings[OUT, S]) S) settings[OUT, S] {
	if maxRetries < 0 {
		panic(fmt.Sprintf("strategies: %s: negative maxRetries: %d", constructor, maxRetries))
	}
	return settings[OUT, S]{maxRetries: maxRetries, with: with}
}

// RetryIfResult returns a copy of the strategy that retries attempts whose results satisfy p, in place of the result predicate
// that it had. Nil means that results are never retried.
func (s *settings[OUT, S]) RetryIfResult(p predicates.ResultPredicate[OUT]) S {
	c := *s
	c.result = p
	return c.with(c)
}

// RetryIfException returns a copy of the strategy that retries attempts whose error satisfies p, in place of the exception
// predicate that it had. Nil means that errors are never retried.
func (s *settings[OUT, S]) RetryIfException(p predicates.ExceptionPredicate) S {
	c := *s
	c.exception = p
	return c.with(c)
}

// WithJitter returns a copy of the strategy whose delays operators spread by jitter. Nil, the default, means none.
func (s *settings[OUT, S]) WithJitter(jitter Jitter) S {
	c := *s
	c.jitter = jitter
	return c.with(c)
}

// MaxRetries returns the number of retries allowed; an element makes one call more than that.
func (s *settings[OUT, S]) MaxRetries() int { return s.maxRetries }

// Jitter returns what WithJitter set, or nil: no jitter.
func (s *settings[OUT, S]) Jitter() Jitter { return s.jitter }

// CanRetry reports whether currentAttempts ≤ MaxRetries (law A4).
func (s *settings[OUT, S]) CanRetry(currentAttempts int) bool {
	return currentAttempts <= s.maxRetries
}

// RetryPredicate returns the predicates set by RetryIfResult and
// RetryIfException, or nil if none is set: then nothing is retried.
func (s *settings[OUT, S]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	if s.result == nil && s.exception == nil {
		return nil
	}
	return predicates.RetryIf(s.result, s.exception)
}
