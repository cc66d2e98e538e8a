package strategies_test

import (
	"fmt"
	"io"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// The decisions of an operator after the attempts of one element.
func ExamplePolicy() {
	lost := predicates.NewReason("CONNECTION_LOST", false, false)
	policy := strategies.ReasonAware(
		predicates.ByException[string](predicates.ErrorIs(io.ErrUnexpectedEOF), lost),
		strategies.BestEffort[string]().WithMaxRetries(2)).
		IdempotentIf(func(input any) bool { return input == "read" })

	for _, input := range []string{"read", "write"} {
		for number := 1; number <= 3; number++ {
			fmt.Println(input, number, strategiestest.Decide(policy, predicates.Attempt[string]{
				Input: input, Number: number, Err: io.ErrUnexpectedEOF, Remaining: time.Second,
			}))
		}
	}
	// Output:
	// read 1 retry after 1ms (CONNECTION_LOST)
	// read 2 retry after 2ms (CONNECTION_LOST)
	// read 3 no retry: refused (CONNECTION_LOST)
	// write 1 no retry: refused (CONNECTION_LOST)
	// write 2 no retry: refused (CONNECTION_LOST)
	// write 3 no retry: refused (CONNECTION_LOST)
}

// Operators take a strategy that depends on the number of attempts, or a policy that
// depends on reasons. Both decide which outcomes are retried.
func ExampleRetry() {
	lost := predicates.NewReason("CONNECTION_LOST", false, false)
	for _, retry := range []strategies.Retry[string]{
		strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException),
		strategies.ReasonAware(predicates.ByException[string](predicates.ErrorIs(io.ErrUnexpectedEOF), lost), nil),
	} {
		deserves := retry.RetryPredicate().ExceptionPredicate()
		fmt.Println(deserves(io.ErrUnexpectedEOF), deserves(io.ErrClosedPipe))
	}
	// Output:
	// true true
	// true false
}
