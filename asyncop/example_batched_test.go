package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A client that looks up many keys with one request. Only the key that was not answered
// is asked for again.
func ExampleBatched() {
	names := map[int]string{1: "Ann", 2: "Bob", 3: "Cid"}
	overloaded := true
	look := func(_ context.Context, ids []int) ([]asyncop.Result[string], error) {
		fmt.Println("look up", ids)
		results := make([]asyncop.Result[string], len(ids)) // one for each id, in their order
		for i, id := range ids {
			results[i].Value = names[id]
			if id == 2 && overloaded {
				results[i].Err, overloaded = errors.New("try again"), false
			}
		}
		return results, nil
	}
	op := asyncop.OrderedWaitWithRetry(
		asyncop.Batched(look, 100, 5*time.Millisecond), // up to 100 keys, which wait for at most 5 ms
		5*time.Second, 1000,
		strategies.FixedDelay[string](3, 10*time.Millisecond).RetryIfException(predicates.HasException))
	var found []string
	for name, err := range op.Results(slices.Values([]int{1, 2, 3})) {
		if err != nil {
			fmt.Println(err)
		}
		found = append(found, name)
	}
	fmt.Println(found)
	// Output:
	// look up [1 2 3]
	// look up [2]
	// [Ann Bob Cid]
}
