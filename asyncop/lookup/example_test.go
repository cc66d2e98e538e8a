package lookup_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
)

// Ten elements ask for two keys at the same time: two calls answer all of them.
func ExampleNew() {
	var prices *lookup.Function[string, int]
	prices = lookup.New(asyncop.Blocking(func(_ context.Context, item string) (int, error) {
		for prices.Stats().Shared < 8 { // a slow call: meanwhile all have asked
			time.Sleep(time.Millisecond)
		}
		return 10 * len(item), nil
	}), nil)

	op := asyncop.OrderedWait(prices, 5*time.Second, 10)
	sum := 0
	for price, err := range op.Results(slices.Values(slices.Repeat([]string{"tea", "coffee"}, 5))) {
		if err != nil {
			fmt.Println(err)
			return
		}
		sum += price
	}
	s := prices.Stats()
	fmt.Println("sum:", sum, "calls:", s.Loads, "shared:", s.Shared)
	// Output:
	// sum: 450 calls: 2 shared: 8
}
