package grpcretry_test

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// statusCode stands for status.Code of google.golang.org/grpc. The server's trailer
// demands two seconds.
func ExampleClassifier() {
	policy := strategies.ReasonAware(
		predicates.Classifiers(grpcretry.Classifier[string](statusCode), netretry.Classifier[string]()),
		strategies.BestEffort[string]())

	unavailable := grpcretry.WithPushback(statusError(14), []string{"2000"})
	for _, idempotent := range []bool{true, false} {
		a := &predicates.Attempt[string]{
			Number: 1, Err: unavailable, Idempotent: idempotent, Remaining: predicates.NoDeadline,
		}
		d := policy.Decide(context.Background(), a, strategies.Situation{})
		fmt.Println(d.Verdict, d.Reason, d.Delay)
	}
	// Output:
	// retried GRPC_UNAVAILABLE 2s
	// refused GRPC_UNAVAILABLE 0s
}
