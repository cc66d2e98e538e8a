package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

func Example_whyNotRetried() {
	lost := asyncop.Blocking(func(ctx context.Context, order string) (string, error) { return "", io.EOF })
	op := asyncop.UnorderedWaitWithRetry(lost, 5*time.Second, 100,
		strategies.ReasonAware(netretry.Classifier[string](), nil),
		asyncop.WithLogger(quiet),
		asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[string]) error {
			fmt.Println(f.Element, "after", f.Attempts, "attempt:", f.NoRetryReason, f.Reason, "in doubt:", f.InDoubt)
			return nil
		}))
	for range op.Results(slices.Values([]string{"order 17"})) {
		fmt.Println("has a result")
	}
	// Output:
	// order 17 after 1 attempt: refused CONNECTION_LOST_IN_FLIGHT in doubt: true
}

// A strategy that repeats one error only does not repeat another.
func Example_anotherError() {
	other := asyncop.Blocking(func(ctx context.Context, order string) (string, error) { return "", io.EOF })
	op := asyncop.OrderedWaitWithRetry(other, 5*time.Second, 100,
		strategies.FixedDelay[string](3, time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)), asyncop.WithLogger(quiet))
	for _, err := range op.Results(slices.Values([]string{"order 17"})) {
		var failed *asyncop.ElementError
		if errors.As(err, &failed) {
			fmt.Println(failed.Attempts, "attempt,", failed.NoRetryReason)
		}
	}
	// Output:
	// 1 attempt, final
}

// An id is remembered as long as its message is in the queue.
func Example_putTwice() {
	ctx := context.Background()
	engine := memory.Open()
	orders := delivery.NewQueue[string](engine, "orders")
	check(orders.Put(ctx, "order 17", delivery.ID("17")))
	check(orders.Put(ctx, "order 17", delivery.ID("17")))
	counts, err := orders.Counts(ctx)
	fmt.Println(counts.Waiting, err)
	// Output:
	// 1 <nil>
}
