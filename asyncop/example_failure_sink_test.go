package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// Failed elements go to a function, and the others continue.
func ExampleWithFailureSink() {
	lookup := asyncop.Blocking(func(_ context.Context, key string) (string, error) {
		if key == "QQQ" {
			return "", errors.New("unknown airport")
		}
		return "row of " + key, nil
	})
	var failed []asyncop.Failure[string]
	op := asyncop.OrderedWait(lookup, time.Second, 10,
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			failed = append(failed, f)
			return nil // taken
		}))
	for row, err := range op.Results(slices.Values([]string{"LHR", "QQQ", "CDG"})) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(row)
	}
	for _, f := range failed { // complete, because the loop has ended
		fmt.Printf("%s failed after %d attempt: %v\n", f.Element, f.Attempts, f.Err)
	}
	// Output:
	// row of LHR
	// row of CDG
	// QQQ failed after 1 attempt: unknown airport
}
