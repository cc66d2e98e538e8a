package strategies_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// A service fails altogether while a thousand elements come, each allowed three retries. Without a budget it would get three
// thousand calls more. The strategy is one of FLIP-232: a budget goes with any.
func ExampleBudget() {
	budget := strategies.NewBudget(0.2, 10, 50).WithClock(clock.NewMock())
	policy := strategies.PolicyOf[string](strategies.FixedDelay[string](3, time.Second).
		RetryIfException(predicates.HasException)).WithBudget(budget)

	retries, overBudget := 0, 0
	for range 1000 {
		for number := 1; ; number++ {
			d := strategiestest.Decide(policy, predicates.Attempt[string]{Number: number, Err: errors.New("down")})
			if !d.Retry {
				if d.Verdict == strategies.OverBudget {
					overBudget++
				}
				break
			}
			retries++
		}
	}
	fmt.Println("retries:", retries)
	fmt.Println("given up for want of budget:", overBudget)
	// Output:
	// retries: 249
	// given up for want of budget: 983
}
