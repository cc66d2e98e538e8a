package strategies_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// Controlled is a custom strategy: its delays are a table, and each entry is a retry.
type Controlled []time.Duration

func (c Controlled) CanRetry(attempts int) bool             { return attempts <= len(c) }
func (c Controlled) BackoffTime(attempts int) time.Duration { return c[attempts-1] }

func (c Controlled) RetryPredicate() predicates.AsyncRetryPredicate[string] {
	return predicates.RetryIf(predicates.EmptyResult[string], predicates.HasException)
}

func ExampleAsyncRetryStrategy() {
	var strategy strategies.AsyncRetryStrategy[string] = Controlled{
		time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond,
	}
	for attempts := 1; strategy.CanRetry(attempts); attempts++ {
		fmt.Println(attempts, strategy.BackoffTime(attempts))
	}
	// Output:
	// 1 1ms
	// 2 10ms
	// 3 50ms
}

func TestControlledConforms(t *testing.T) {
	strategiestest.Run(t, func() Controlled { return Controlled{time.Millisecond, time.Second} })
}
