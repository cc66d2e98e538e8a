package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
)

// linear waits one step longer before every retry.
type linear struct {
	retries int
	step    time.Duration
}

func (s linear) CanRetry(attempts int) bool             { return attempts <= s.retries }
func (s linear) BackoffTime(attempts int) time.Duration { return time.Duration(attempts) * s.step }

func (s linear) RetryPredicate() predicates.AsyncRetryPredicate[string] {
	return predicates.RetryIf(predicates.EmptyResult[string], predicates.HasException)
}

// A custom strategy decides which outcomes are retried, how often, and when.
func ExampleUnorderedWaitWithRetry() {
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		if n := asyncop.AttemptFromContext(ctx); n < 3 {
			return "", fmt.Errorf("no luck at attempt %d", n)
		}
		return "row of " + key, nil
	})
	op := asyncop.UnorderedWaitWithRetry(lookup, time.Second, 10, linear{retries: 2, step: time.Millisecond},
		asyncop.WithDrainRetries())

	source := make(chan any, 1)
	source <- "LHR"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Stats().Retries(), "retries,", op.Err())
	// Output:
	// row of LHR
	// 2 retries, <nil>
}
