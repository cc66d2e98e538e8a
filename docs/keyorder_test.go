package docs_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type booking struct {
	account string
	amount  int
}

type ledger map[string]int

func (l ledger) apply(_ context.Context, b booking) (int, error) {
	l[b.account] += b.amount
	return l[b.account], nil
}

func Example_keyOrder() {
	ctx := context.Background()
	books := ledger{}
	bookings := slices.Values([]booking{{"ann", 5}, {"ann", 2}, {"ann", -3}})

	apply := asyncop.Blocking(func(ctx context.Context, b booking) (int, error) { return books.apply(ctx, b) })
	op := asyncop.KeyOrderedWait(apply,
		func(b booking) string { return b.account }, // the key
		30*time.Second, 1000,
		strategies.FixedDelay[int](3, time.Second).RetryIfException(predicates.HasException),
		asyncop.WithContext(ctx),
		asyncop.WithMaxConcurrentCalls(50),
		asyncop.WithMaxWaitingPerKey(100))
	for balance, err := range op.Results(bookings) {
		fmt.Println(balance, err)
	}
	// Output:
	// 5 <nil>
	// 7 <nil>
	// 4 <nil>
}
