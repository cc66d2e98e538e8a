package strategies_test

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func ExampleFixedDelay() {
	strategy := strategies.FixedDelay[string](2, 100*time.Millisecond).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException)

	for attempts := 1; attempts <= 3; attempts++ {
		if strategy.CanRetry(attempts) {
			fmt.Printf("attempt %d failed: again after %v\n", attempts, strategy.BackoffTime(attempts))
		} else {
			fmt.Printf("attempt %d failed: no retry left\n", attempts)
		}
	}
	// Output:
	// attempt 1 failed: again after 100ms
	// attempt 2 failed: again after 100ms
	// attempt 3 failed: no retry left
}
