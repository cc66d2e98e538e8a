package strategies_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A service fails altogether while a thousand elements come, each allowed three
// retries. Without a budget it would get three thousand calls more. The strategy is
// one of FLIP-232: a budget goes with any.
func ExampleBudget() {
	budget := strategies.NewBudget(0.2, 10, 50, strategies.BudgetClock(clock.NewMock()))
	policy := strategies.PolicyOf[string](strategies.FixedDelay[string](3, time.Second).
		RetryIfException(predicates.HasException)).WithBudget(budget)

	verdicts := map[strategies.Verdict]int{}
	for range 1000 {
		policy.Deposit() // what an operator does at a first attempt
		for number := 1; ; number++ {
			a := &predicates.Attempt[string]{Number: number, Err: errors.New("down"), Remaining: time.Minute}
			d := policy.Decide(context.Background(), a, strategies.Situation{})
			verdicts[d.Verdict]++
			if d.Verdict != strategies.Retried {
				break
			}
		}
	}
	fmt.Println("retries:", verdicts[strategies.Retried])
	fmt.Println("given up for want of budget:", verdicts[strategies.OverBudget])
	// Output:
	// retries: 249
	// given up for want of budget: 983
}
