package asyncop_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// A program that does not use go-streams can range over the results, which are typed and
// need no channel.
func ExampleAsyncWaitOperator_Results() {
	square := asyncop.Blocking(func(_ context.Context, n int) (string, error) {
		time.Sleep(time.Millisecond)
		return fmt.Sprintf("%d² = %d", n, n*n), nil
	})
	op := asyncop.OrderedWait(square, 5*time.Second, 100)

	for line, err := range op.Results(slices.Values([]int{1, 2, 3})) {
		if err != nil {
			fmt.Println("gave up:", err)
			return
		}
		fmt.Println(line)
	}
	// Output:
	// 1² = 1
	// 2² = 4
	// 3² = 9
}
