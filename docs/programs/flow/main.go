package main

import (
	"context"
	"errors"
	"log"
	"sync/atomic"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var calls atomic.Int64

// double fails on its first call.
func double(ctx context.Context, n int) (int, error) {
	if calls.Add(1) == 1 {
		return 0, errors.New("busy")
	}
	return 2 * n, nil
}

func main() {
	numbers := make(chan any, 3)
	for n := range 3 {
		numbers <- n
	}
	close(numbers)

	// Up to 3 retries, 50 ms apart. A number that waits for its retry holds no call.
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(double), 5*time.Second, 100,
		strategies.FixedDelay[int](3, 50*time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithMaxConcurrentCalls(10),
		asyncop.WithDrainRetries()) // this input ends: let its retries end, too

	extension.NewChanSource(numbers).
		Via(op).
		Via(flow.NewMap(func(n int) int { return n + 1 }, 1)).
		To(extension.NewStdoutSink())
	if err := op.Wait(); err != nil {
		log.Fatal(err)
	}
}
