package docs_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/ext/otter/ottercache"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type row struct {
	id       int
	repeated bool
}

// bulkTable answers many elements in one round trip.
type bulkTable struct{ asked atomic.Int64 }

func (t *bulkTable) users(_ context.Context, ids []int) ([]asyncop.Result[string], error) {
	t.asked.Add(int64(len(ids)))
	results := make([]asyncop.Result[string], len(ids))
	for i, id := range ids {
		results[i].Value = fmt.Sprint("user ", id)
	}
	return results, nil
}

func (*bulkTable) insert(_ context.Context, rows []row) ([]asyncop.Result[row], error) {
	results := make([]asyncop.Result[row], len(rows))
	for i, r := range rows {
		results[i].Value = r
	}
	return results, nil
}

func Example_batches() {
	db := &bulkTable{}
	cache, err := ottercache.New(&otter.Options[int, lookup.Entry[string]]{MaximumSize: 10_000})
	if err != nil {
		fmt.Println(err)
		return
	}

	users := asyncop.Batched(func(ctx context.Context, ids []int) ([]asyncop.Result[string], error) {
		return db.users(ctx, ids) // a result for each id, in the order of ids
	}, 100, 5*time.Millisecond) // up to 100 elements, which wait for at most 5 ms
	op := asyncop.OrderedWaitWithRetry(users, 5*time.Second, 1000,
		strategies.FixedDelay[string](3, 100*time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithMaxConcurrentCalls(4)) // calls, not elements
	for name, err := range op.Results(slices.Values([]int{1, 2, 3})) {
		fmt.Println(name, err)
	}

	cached := lookup.New(users, cache)
	for name, err := range asyncop.OrderedWait(cached, 5*time.Second, 1000).Results(slices.Values([]int{4, 5, 4})) {
		fmt.Println(name, err)
	}
	fmt.Println("asked for", db.asked.Load(), "users")

	insert := asyncop.Batched(func(ctx context.Context, rows []row) ([]asyncop.Result[row], error) {
		of := asyncop.MemberContexts(ctx)
		for i := range rows {
			rows[i].repeated = asyncop.AttemptFromContext(of[i]) > 1
		}
		return db.insert(ctx, rows)
	}, 100, 5*time.Millisecond)
	for r, err := range asyncop.OrderedWait(insert, 5*time.Second, 1000).Results(slices.Values([]row{{id: 6}})) {
		fmt.Println(r, err)
	}
	// Output:
	// user 1 <nil>
	// user 2 <nil>
	// user 3 <nil>
	// user 4 <nil>
	// user 5 <nil>
	// user 4 <nil>
	// asked for 5 users
	// {6 false} <nil>
}
