package strategies_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// A strategy may do I/O, prepare the next attempt with a Before, and replace the error.
func ExampleAction() {
	staleRoute := predicates.NewReason("STALE_ROUTE", true, false)
	errNoRoute := errors.New("no node serves this key")

	strategy := strategies.ReasonStrategyFunc[string](
		func(ctx context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
			if a.Retries() == 2 {
				return strategies.Action{}.WithError(errors.Join(errNoRoute, a.Err)), nil
			}
			return strategies.RetryAfter(10 * time.Millisecond).WithBefore(func(ctx context.Context) error {
				fmt.Println("  refreshing the route of", a.Input)
				return nil
			}), nil
		})
	policy := strategies.ReasonAware(predicates.Named[string](), strategy)

	for number := 1; number <= 3; number++ {
		d := strategiestest.Decide(policy, predicates.Attempt[string]{
			Input: "key-7", Number: number, Remaining: time.Second,
			Err: predicates.WithReason(errors.New("wrong node"), staleRoute),
		})
		fmt.Println(d)
		if !d.Retry {
			fmt.Println(d.Err)
			break
		}
		_ = d.Before(context.Background()) // an operator calls it after the delay
	}
	// Output:
	// retry after 10ms (STALE_ROUTE)
	//   refreshing the route of key-7
	// retry after 10ms (STALE_ROUTE)
	//   refreshing the route of key-7
	// no retry: refused (STALE_ROUTE)
	// no node serves this key
	// STALE_ROUTE: wrong node
}
