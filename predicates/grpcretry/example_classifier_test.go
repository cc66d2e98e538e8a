package grpcretry_test

import (
	"fmt"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// statusCode replaces status.Code of google.golang.org/grpc. The server's trailer demands
// two seconds.
func ExampleClassifier() {
	policy := strategies.ReasonAware(
		predicates.Classifiers(grpcretry.Classifier[string](statusCode), netretry.Classifier[string]()),
		strategies.BestEffort[string]()).
		IdempotentIf(func(input any) bool { return input == "get" })

	unavailable := grpcretry.WithPushback(statusError(14), []string{"2000"})
	for _, input := range []string{"get", "add"} {
		fmt.Println(strategiestest.Decide(policy, predicates.Attempt[string]{Input: input, Err: unavailable}))
	}
	// Output:
	// retry after 2s (GRPC_UNAVAILABLE)
	// no retry: refused (GRPC_UNAVAILABLE)
}
