package strategies_test

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func ExampleExponentialBackoff() {
	strategy := strategies.ExponentialBackoff[string](strategies.Unlimited, 10*time.Millisecond, time.Second, 3).
		RetryIfException(predicates.HasException)

	for attempts := range 7 {
		fmt.Println(attempts+1, strategy.BackoffTime(attempts+1))
	}
	fmt.Println(1_000_000, strategy.BackoffTime(1_000_000))
	// Output:
	// 1 10ms
	// 2 30ms
	// 3 90ms
	// 4 270ms
	// 5 810ms
	// 6 1s
	// 7 1s
	// 1000000 1s
}
