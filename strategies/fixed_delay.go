package strategies

import (
	"fmt"
	"time"
)

// FixedDelayStrategy waits the same time before every retry. Made by [FixedDelay], it never changes and is safe for concurrent
// use. S, which its setters return, is *FixedDelayStrategy[OUT].
type FixedDelayStrategy[OUT any] struct {
	settings[OUT, *FixedDelayStrategy[OUT]]

	delay time.Duration
}

// FixedDelay returns the strategy that allows maxRetries retries, so maxRetries+1 calls, and waits for delay before each:
//
//	d(n) = delay
//
// FixedDelay(3, 100ms) does:
//
//	attempts made   1       2       3       4
//	delay           100ms   100ms   100ms   no retry
//
// maxRetries may be 0 or [Unlimited], delay may be 0; FixedDelay panics if either is negative. Nothing is retried until
// RetryIfResult or RetryIfException says what. Flink calls the number of retries maxAttempts.
func FixedDelay[OUT any](maxRetries int, delay time.Duration) *FixedDelayStrategy[OUT] {
	if delay < 0 {
		panic(fmt.Sprintf("strategies: FixedDelay: negative delay: %v", delay))
	}
	with := func(s settings[OUT, *FixedDelayStrategy[OUT]]) *FixedDelayStrategy[OUT] {
		return &FixedDelayStrategy[OUT]{settings: s, delay: delay}
	}
	return with(newSettings("FixedDelay", maxRetries, with))
}

// BackoffTime returns the delay, whatever currentAttempts is.
func (s *FixedDelayStrategy[OUT]) BackoffTime(int) time.Duration {
	return s.delay
}
