package failsafecall_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A service is down for the first element. The second one waits for the breaker; it was not sent, so it may be repeated.
func ExampleGuard() {
	breaker := circuitbreaker.NewBuilder[any]().WithFailureThreshold(1).WithDelay(50 * time.Millisecond).Build()
	sent := 0
	pay := asyncop.Blocking(func(_ context.Context, id string) (string, error) {
		if sent++; sent == 1 {
			return "", errors.New("connection reset")
		}
		return id + " paid", nil
	})

	op := asyncop.OrderedWaitWithRetry(failsafecall.Guard(breaker, pay), 5*time.Second, 1,
		strategies.ReasonAware(predicates.Named[string](), nil), asyncop.WithDropOnFailure())
	for receipt, err := range op.Results(slices.Values([]string{"P1", "P2", "P3"})) {
		fmt.Println(receipt, err)
	}
	fmt.Println("sent:", sent, "lost:", op.Stats().Dropped)
	// Output:
	// P2 paid <nil>
	// P3 paid <nil>
	// sent: 3 lost: 1
}

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
