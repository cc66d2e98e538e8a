package strategies_test

import (
	"fmt"
	"io"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// What an operator does after the attempts of one element.
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
