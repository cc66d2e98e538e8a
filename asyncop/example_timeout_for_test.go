package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// A user's request has less time than a batch request.
func ExampleWithTimeoutFor() {
	type request struct {
		Key  string
		User bool
	}
	lookup := asyncop.Blocking(func(ctx context.Context, r request) (string, error) {
		deadline, _ := ctx.Deadline()
		return fmt.Sprintf("%s has %v", r.Key, time.Until(deadline).Round(time.Minute)), nil
	})
	op := asyncop.OrderedWait(lookup, time.Hour, 10,
		asyncop.WithTimeoutFor(func(r request) time.Duration {
			if r.User {
				return 10 * time.Minute
			}
			return 0 // the operator's timeout
		}))
	for row, err := range op.ResultsOf(asyncop.FromSlice([]request{{"LHR", true}, {"CDG", false}})) {
		fmt.Println(row, err)
	}
	// Output:
	// LHR has 10m0s <nil>
	// CDG has 1h0m0s <nil>
}
