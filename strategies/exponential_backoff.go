package strategies

import (
	"fmt"
	"math"
	"time"
)

// ExponentialBackoffStrategy waits longer before every retry, up to a bound. Made by [ExponentialBackoff], it never changes and
// is safe for concurrent use. S, which its setters return, is *ExponentialBackoffStrategy[OUT].
type ExponentialBackoffStrategy[OUT any] struct {
	settings[OUT, *ExponentialBackoffStrategy[OUT]]

	initial    time.Duration
	max        time.Duration
	multiplier float64
}

// ExponentialBackoff returns the strategy that allows maxRetries retries, so maxRetries+1 calls, waits for initial before the
// first and multiplier times longer before each one after that, but never longer than max:
//
//	d(1) = initial
//	d(n) = min(d(n-1) × multiplier, max)
//
// ExponentialBackoff(8, 100ms, 5s, 2) does:
//
//	attempts made   1       2       3       4       5      6      7    8    9
//	delay           100ms   200ms   400ms   800ms   1.6s   3.2s   5s   5s   no retry
//
// The delay is computed from the attempt alone, in constant time, and rounded to the nearest nanosecond. Flink keeps d(n-1) in
// one field for all records of a subtask, so that records in back-off at the same time disturb each other's sequence; here they
// cannot.
//
// maxRetries may be 0 or [Unlimited]. An initial of 0 stays 0 and a multiplier of 1 makes the delay constant.
// ExponentialBackoff panics if maxRetries or initial is negative, max is below initial, or multiplier is below 1 or not finite.
// Nothing is retried until RetryIfResult or RetryIfException says what. Flink calls the number of retries maxAttempts.
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
	if d >= float64(s.max) { // +Inf included; below it, d fits a Duration
		return s.max
	}
	// float64(initial) may lie below initial where a float64 has no single nanoseconds any more, beyond 104 days.
	return max(s.initial, time.Duration(math.Round(d)))
}
