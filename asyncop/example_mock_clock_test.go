package asyncop_test

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// With a mock clock, a test sees a retry without waiting for an hour.
func ExampleWithClock() {
	mock := clock.NewMock()
	lookup := asyncop.Func(func(ctx context.Context, key string, result asyncop.ResultFuture[string]) error {
		attempt := asyncop.AttemptFromContext(ctx)
		fmt.Printf("%s attempt %d\n", mock.Now().UTC().Format(time.TimeOnly), attempt)
		if attempt == 1 {
			result.Complete() // no result yet
		} else {
			result.Complete("row of " + key)
		}
		return nil
	})
	op := asyncop.OrderedWaitWithRetry(lookup, 24*time.Hour, 10,
		strategies.FixedDelay[string](3, time.Hour).RetryIfResult(predicates.EmptyResult),
		asyncop.WithClock(mock))

	op.In() <- "LHR"
	for op.Stats().WaitingForRetry == 0 {
		runtime.Gosched() // until the first attempt has failed
	}
	mock.Add(time.Hour)
	fmt.Println(<-op.Out())
	close(op.In())
	fmt.Println(op.Wait())
	// Output:
	// 00:00:00 attempt 1
	// 01:00:00 attempt 2
	// row of LHR
	// <nil>
}
