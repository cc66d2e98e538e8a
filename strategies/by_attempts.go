package strategies

import (
	"fmt"
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// AsyncRetryStrategy decides whether and when an element is tried again.
//
// A strategy serves every element of an operator, so CanRetry and BackoffTime should
// depend on the attempt alone. An operator never calls a strategy concurrently, but
// several operators may share it: guard state that it shares on purpose, such as a budget
// of retries. No method may block.
//
// A strategy may have two more methods, which the operator calls once, when it is built:
// Jitter() Jitter, whose result spreads the delays, and MaxRetries() int, which
// asyncop.LatencyFirst needs. A wrapper has Unwrap() any instead of MaxRetries.
type AsyncRetryStrategy[OUT any] interface {
	// CanRetry reports whether an element may be tried again after currentAttempts
	// attempts, counted from 1 (law A4). Once false it stays false for greater numbers.
	CanRetry(currentAttempts int) bool

	// BackoffTime returns the delay before the next attempt, at least 0, after
	// currentAttempts attempts: always the same for the same number. It is called only if
	// CanRetry is true.
	BackoffTime(currentAttempts int) time.Duration

	// RetryPredicate returns the predicate of outcomes that deserve another try, or nil
	// for never. It is read once, when the operator is built.
	RetryPredicate() predicates.AsyncRetryPredicate[OUT]
}

// Unlimited as maxRetries allows retries until the element's timeout.
const Unlimited = math.MaxInt

// settings are common to all strategies of this package. Setters return a copy of S.
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

// RetryIfResult returns a copy of the strategy with the result predicate p. If it is nil,
// results are never retried.
func (s *settings[OUT, S]) RetryIfResult(p predicates.ResultPredicate[OUT]) S {
	c := *s
	c.result = p
	return c.with(c)
}

// RetryIfException returns a copy of the strategy with the exception predicate p. If it
// is nil, errors are never retried.
func (s *settings[OUT, S]) RetryIfException(p predicates.ExceptionPredicate) S {
	c := *s
	c.exception = p
	return c.with(c)
}

// WithJitter returns a copy of the strategy whose delays operators spread by jitter. The
// default is nil, no jitter.
func (s *settings[OUT, S]) WithJitter(jitter Jitter) S {
	c := *s
	c.jitter = jitter
	return c.with(c)
}

var (
	_ decision.LimitedStrategy = (*settings[any, any])(nil)
	_ decision.LimitedStrategy = noRetry[any]{}
)

// MaxRetries returns the number of retries allowed.
func (s *settings[OUT, S]) MaxRetries() int { return s.maxRetries }

// Jitter returns the jitter of WithJitter, or nil.
func (s *settings[OUT, S]) Jitter() Jitter { return s.jitter }

// CanRetry reports whether currentAttempts ≤ MaxRetries (law A4).
func (s *settings[OUT, S]) CanRetry(currentAttempts int) bool {
	return currentAttempts <= s.maxRetries
}

// RetryPredicate returns the predicates of RetryIfResult and RetryIfException, or nil if
// neither is set.
func (s *settings[OUT, S]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] {
	if s.result == nil && s.exception == nil {
		return nil
	}
	return predicates.RetryIf(s.result, s.exception)
}

// FixedDelayStrategy waits the same time before every retry. See [FixedDelay]. It is safe
// for concurrent use. Its setters return a *FixedDelayStrategy[OUT].
type FixedDelayStrategy[OUT any] struct {
	settings[OUT, *FixedDelayStrategy[OUT]]

	delay time.Duration
}

// FixedDelay returns the strategy that allows maxRetries retries, so maxRetries+1 calls,
// and waits for delay before each:
//
//	d(n) = delay
//
// FixedDelay(3, 100ms) does:
//
//	attempts made   1       2       3       4
//	delay           100ms   100ms   100ms   no retry
//
// maxRetries may be 0 or [Unlimited], delay may be 0; FixedDelay panics if either is
// negative. It does not retry before RetryIfResult or RetryIfException is set.
func FixedDelay[OUT any](maxRetries int, delay time.Duration) *FixedDelayStrategy[OUT] {
	if delay < 0 {
		panic(fmt.Sprintf("strategies: FixedDelay: negative delay: %v", delay))
	}
	with := func(s settings[OUT, *FixedDelayStrategy[OUT]]) *FixedDelayStrategy[OUT] {
		return &FixedDelayStrategy[OUT]{settings: s, delay: delay}
	}
	return with(newSettings("FixedDelay", maxRetries, with))
}

// BackoffTime returns the delay.
func (s *FixedDelayStrategy[OUT]) BackoffTime(int) time.Duration {
	return s.delay
}

// ExponentialBackoffStrategy waits longer before every retry, up to a bound. See
// [ExponentialBackoff]. It is safe for concurrent use. Its setters return an
// *ExponentialBackoffStrategy[OUT].
type ExponentialBackoffStrategy[OUT any] struct {
	settings[OUT, *ExponentialBackoffStrategy[OUT]]

	initial    time.Duration
	max        time.Duration
	multiplier float64
}

// ExponentialBackoff returns the strategy that allows maxRetries retries, so maxRetries+1
// calls, waits for initial before the first and multiplier times longer before each
// following retry, but never longer than max:
//
//	d(1) = initial
//	d(n) = min(d(n-1) × multiplier, max)
//
// ExponentialBackoff(8, 100ms, 5s, 2) does:
//
//	attempts made   1       2       3       4       5      6      7    8    9
//	delay           100ms   200ms   400ms   800ms   1.6s   3.2s   5s   5s   no retry
//
// The delay is computed from the attempt alone, in constant time, and rounded to the
// nearest nanosecond.
//
// maxRetries may be 0 or [Unlimited]. An initial of 0 stays 0 and a multiplier of 1 makes
// the delay constant. ExponentialBackoff panics if maxRetries or initial is negative, max
// is below initial, or multiplier is below 1 or not finite. It does not retry before
// RetryIfResult or RetryIfException is set.
func ExponentialBackoff[OUT any](maxRetries int, initial, max time.Duration, multiplier float64) *ExponentialBackoffStrategy[OUT] {
	switch {
	case initial < 0:
		panic(fmt.Sprintf("strategies: ExponentialBackoff: negative initial: %v", initial))
	case max < initial:
		panic(fmt.Sprintf("strategies: ExponentialBackoff: max below initial: %v < %v", max, initial))
	case math.IsNaN(multiplier) || math.IsInf(multiplier, 0):
		panic(fmt.Sprintf("strategies: ExponentialBackoff: multiplier not finite: %v", multiplier))
	case multiplier < 1:
		panic(fmt.Sprintf("strategies: ExponentialBackoff: multiplier below 1: %v", multiplier))
	}
	with := func(s settings[OUT, *ExponentialBackoffStrategy[OUT]]) *ExponentialBackoffStrategy[OUT] {
		return &ExponentialBackoffStrategy[OUT]{settings: s, initial: initial, max: max, multiplier: multiplier}
	}
	return with(newSettings("ExponentialBackoff", maxRetries, with))
}

// BackoffTime returns d(currentAttempts). Numbers below 1 count as 1.
func (s *ExponentialBackoffStrategy[OUT]) BackoffTime(currentAttempts int) time.Duration {
	if currentAttempts <= 1 || s.initial == 0 || s.multiplier == 1 { // 0 × Inf would be NaN
		return s.initial
	}
	d := float64(s.initial) * math.Pow(s.multiplier, float64(currentAttempts-1))
	if d >= float64(s.max) { // including +Inf; a smaller d fits a Duration
		return s.max
	}
	// Beyond 104 days a float64 is not exact to the nanosecond, and may be less than
	// initial.
	return max(s.initial, time.Duration(math.Round(d)))
}

// NoRetry returns the strategy that never retries. Only with NoRetry, or [PolicyOf] of
// it, an operator allows a timeout of 0, which means no timeout.
func NoRetry[OUT any]() AsyncRetryStrategy[OUT] {
	return noRetry[OUT]{}
}

type noRetry[OUT any] struct{}

func (noRetry[OUT]) CanRetry(int) bool             { return false }
func (noRetry[OUT]) BackoffTime(int) time.Duration { return 0 }
func (noRetry[OUT]) MaxRetries() int               { return 0 }

func (noRetry[OUT]) RetryPredicate() predicates.AsyncRetryPredicate[OUT] { return nil }
