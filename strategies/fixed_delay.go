package strategies

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// FixedDelayStrategy waits the same time before every retry. Made by
// [FixedDelay], it never changes and is safe for concurrent use.
type FixedDelayStrategy[OUT any] struct {
	settings[OUT]

	delay time.Duration
}

// FixedDelay returns the strategy that allows maxRetries retries, so
// maxRetries+1 calls, and waits for delay before each:
//
//	d(n) = delay
//
// FixedDelay(3, 100ms) does:
//
//	attempts made   1       2       3       4
//	delay           100ms   100ms   100ms   no retry
//
// maxRetries may be 0 or [Unlimited], delay may be 0; FixedDelay panics if
// either is negative. Nothing is retried until RetryIfResult or
// RetryIfException says what. Flink calls the number of retries maxAttempts.
func FixedDelay[OUT any](maxRetries int, delay time.Duration) *FixedDelayStrategy[OUT] {
	s := newSettings[OUT]("FixedDelay", maxRetries)
	if delay < 0 {
		panic(fmt.Sprintf("strategies: FixedDelay: negative delay: %v", delay))
	}
	return &FixedDelayStrategy[OUT]{settings: s, delay: delay}
}

// RetryIfResult returns a copy of s that retries attempts whose results satisfy
// p, in place of the result predicate s had. Nil means that results are never
// retried.
func (s *FixedDelayStrategy[OUT]) RetryIfResult(p predicates.ResultPredicate[OUT]) *FixedDelayStrategy[OUT] {
	c := *s
	c.result = p
	return &c
}

// RetryIfException returns a copy of s that retries attempts whose error
// satisfies p, in place of the exception predicate s had. Nil means that errors
// are never retried.
func (s *FixedDelayStrategy[OUT]) RetryIfException(p predicates.ExceptionPredicate) *FixedDelayStrategy[OUT] {
	c := *s
	c.exception = p
	return &c
}

// WithJitter returns a copy of s whose delays operators spread by jitter. Nil,
// the default, means none.
func (s *FixedDelayStrategy[OUT]) WithJitter(jitter Jitter) *FixedDelayStrategy[OUT] {
	c := *s
	c.jitter = jitter
	return &c
}

// BackoffTime returns the delay, whatever currentAttempts is.
func (s *FixedDelayStrategy[OUT]) BackoffTime(int) time.Duration {
	return s.delay
}
