package strategies

import "time"

// Backoff returns the delay before the next retry of an element that has been
// retried retries times, 0 at its first failure: one less than the attempts that
// an [AsyncRetryStrategy] counts. It is a pure function, never negative, and safe
// for concurrent use.
type Backoff func(retries int) time.Duration

// Exponential returns the back-off of [ExponentialBackoff]:
//
//	d(n) = min(initial × factorⁿ, max)
//
// Exponential(1ms, 500ms, 2), that of [BestEffort], does:
//
//	retries made   0     1     2     3     4      5      6      7       8       9       10
//	delay          1ms   2ms   4ms   8ms   16ms   32ms   64ms   128ms   256ms   500ms   500ms
//
// It panics where ExponentialBackoff does.
func Exponential(initial, max time.Duration, factor float64) Backoff {
	return BackoffOf(ExponentialBackoff[struct{}](Unlimited, initial, max, factor))
}

// BackoffOf returns the delays of a FLIP-232 strategy as a back-off: those after
// attempt 1, 2, … for 0, 1, … retries. How many retries it allows does not count.
// What s says is passed on as it is, a negative delay of a faulty one too. It panics
// if s is nil.
func BackoffOf[OUT any](s AsyncRetryStrategy[OUT]) Backoff {
	mustNotBeNil("BackoffOf", s)
	return func(retries int) time.Duration { return s.BackoffTime(after(retries)) }
}

// after returns the number of attempts that were made if there were retries.
func after(retries int) (attempts int) {
	if retries == Unlimited {
		return retries
	}
	return max(retries, 0) + 1
}

// ControlledBackoff is the [Backoff] of reasons that are always retried, fast at
// first and bounded by a second, as RFC 0049 lays it down:
//
//	retries made   0     1      2      3       4       5 and more
//	delay          1ms   10ms   50ms   100ms   500ms   1s
func ControlledBackoff(retries int) time.Duration {
	return controlled[min(max(retries, 0), len(controlled)-1)]
}

var controlled = [...]time.Duration{
	1 * time.Millisecond,
	10 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond,
	500 * time.Millisecond,
	1000 * time.Millisecond,
}
