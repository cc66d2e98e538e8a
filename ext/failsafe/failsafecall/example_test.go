package failsafecall_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go/hedgepolicy"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
)

// The first call hangs; after 20 ms a second one is made, and answers.
func ExampleHedged() {
	replicas := make(chan string, 2)
	replicas <- "slow"
	replicas <- "fast"
	get := func(ctx context.Context, key string) (string, error) {
		if replica := <-replicas; replica == "fast" {
			return key + " from " + replica, nil
		}
		<-ctx.Done()
		return "", ctx.Err()
	}

	hedge := hedgepolicy.NewBuilderWithDelay[string](20 * time.Millisecond).Build()
	reads := func(context.Context, string) bool { return true } // a read may happen twice
	op := asyncop.OrderedWait(failsafecall.Hedged(get, hedge, reads), 5*time.Second, 10)
	for row, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(row, err)
	}
	// Output:
	// lhr from fast <nil>
}
