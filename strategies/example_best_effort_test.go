package strategies_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

type robotKey struct{}

// politeStrategy is best effort, except that it does not retry for robots and does not
// wait for a circuit breaker.
type politeStrategy struct {
	*strategies.BestEffortStrategy[string]
}

func (s politeStrategy) Decide(ctx context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
	if robot, _ := a.Value(robotKey{}).(bool); robot || a.Reason == predicates.CircuitBreakerOpen {
		return strategies.Action{}, nil
	}
	return s.BestEffortStrategy.Decide(ctx, a)
}

// Extend best effort and override the situations you need to.
func ExampleBestEffortStrategy() {
	overloaded := predicates.NewReason("OVERLOADED", true, false)
	policy := strategies.ReasonAware(predicates.Named[string](), politeStrategy{strategies.BestEffort[string]()})

	people := context.Background()
	robots := context.WithValue(people, robotKey{}, true)
	for _, values := range []context.Context{people, robots} {
		for _, reason := range []predicates.Reason{overloaded, predicates.CircuitBreakerOpen} {
			fmt.Println(strategiestest.Decide(policy, predicates.Attempt[string]{
				Number: 3, Err: predicates.WithReason(errors.New("refused"), reason), Values: values,
			}))
		}
	}
	// Output:
	// retry after 4ms (OVERLOADED)
	// no retry: refused (CIRCUIT_BREAKER_OPEN)
	// no retry: refused (OVERLOADED)
	// no retry: refused (CIRCUIT_BREAKER_OPEN)
}
