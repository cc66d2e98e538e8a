package bench

import (
	"context"
	"time"

	"github.com/avast/retry-go/v5"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
)

const maxRetries = 3

// retrier repeats a blocking call in the worker that runs it.
type retrier struct {
	name string
	wrap func(fn call, delay time.Duration) call
}

var retriers = []retrier{
	{"failsafe", withFailsafe},
	{"backoff", withBackoff},
	{"retry-go", withRetryGo},
	{"by-hand", byHand},
}

func withFailsafe(fn call, delay time.Duration) call {
	policy := retrypolicy.NewBuilder[*Item]().WithMaxRetries(maxRetries).WithDelay(delay).Build()
	executor := failsafe.With(policy)
	return func(it *Item) (*Item, error) {
		return executor.Get(func() (*Item, error) { return fn(it) })
	}
}

// withFailsafeBulkhead retries around a bulkhead: an element waiting for its retry holds
// no permit.
func withFailsafeBulkhead(fn call, permits int, delay time.Duration) call {
	retry := retrypolicy.NewBuilder[*Item]().WithMaxRetries(maxRetries).WithDelay(delay).Build()
	permit := bulkhead.NewBuilder[*Item](uint(permits)).WithMaxWaitTime(time.Hour).Build()
	executor := failsafe.With(retry, permit)
	return func(it *Item) (*Item, error) {
		return executor.Get(func() (*Item, error) { return fn(it) })
	}
}

func withBackoff(fn call, delay time.Duration) call {
	constant := backoff.NewConstantBackOff(delay)
	ctx := context.Background()
	return func(it *Item) (*Item, error) {
		return backoff.Retry(ctx, func() (*Item, error) { return fn(it) },
			backoff.WithBackOff(constant), backoff.WithMaxTries(maxRetries+1))
	}
}

func withRetryGo(fn call, delay time.Duration) call {
	retrier := retry.NewWithData[*Item](
		retry.Attempts(maxRetries+1), retry.Delay(delay), retry.DelayType(retry.FixedDelay), retry.LastErrorOnly(true))
	return func(it *Item) (*Item, error) {
		return retrier.Do(func() (*Item, error) { return fn(it) })
	}
}

func byHand(fn call, delay time.Duration) call {
	return func(it *Item) (*Item, error) {
		for retries := 0; ; retries++ {
			r, err := fn(it)
			if err == nil || retries == maxRetries {
				return r, err
			}
			time.Sleep(delay)
		}
	}
}
