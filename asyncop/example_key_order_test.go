package asyncop_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// Changes of one account are applied one after another. Changes of different accounts run
// concurrently.
func ExampleKeyOrderedWait() {
	type change struct {
		account string
		amount  int
	}
	balances := map[string]*int{"ann": new(int), "bob": new(int)} // calls of an account do not overlap: no lock is needed
	apply := asyncop.Blocking(func(_ context.Context, c change) (string, error) {
		*balances[c.account] += c.amount
		return fmt.Sprintf("%s has %d", c.account, *balances[c.account]), nil
	})
	op := asyncop.KeyOrderedWait(apply, func(c change) string { return c.account }, time.Second, 100, nil)

	var ann []string // the results of an account leave in input order
	for text, err := range op.Results(slices.Values([]change{{"ann", 5}, {"bob", 1}, {"ann", 2}, {"bob", 1}, {"ann", -3}})) {
		if err != nil {
			fmt.Println(err)
		}
		if text[:3] == "ann" {
			ann = append(ann, text)
		}
	}
	fmt.Println(ann)
	fmt.Println("bob has", *balances["bob"])
	// Output:
	// [ann has 5 ann has 7 ann has 4]
	// bob has 2
}
