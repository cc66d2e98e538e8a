package asyncop_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// A list and short calls: the operator runs on the goroutine of the loop.
func ExampleAsyncWaitOperator_ResultsOf() {
	upper := asyncop.Func(func(_ context.Context, word string, result asyncop.ResultFuture[string]) error {
		result.Complete(strings.ToUpper(word)) // a cache hit, for instance; a miss would be completed later
		return nil
	})
	op := asyncop.OrderedWait(upper, time.Second, 100)

	for word, err := range op.ResultsOf(asyncop.FromSlice([]string{"a", "weir", "holds"})) {
		if err != nil {
			fmt.Println("gave up:", err)
			return
		}
		fmt.Println(word)
	}
	// Output:
	// A
	// WEIR
	// HOLDS
}
