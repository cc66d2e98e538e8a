package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type Row struct{ Key, Name string }

type Table map[string]Row

func (t Table) Get(_ context.Context, key string) (Row, error) {
	if row, ok := t[key]; ok {
		return row, nil
	}
	return Row{}, asyncop.ErrNoResult
}

// lateTable is a Table whose rows appear after a while.
type lateTable struct{ Table }

func (t lateTable) Get(ctx context.Context, key string) (Row, error) {
	if asyncop.AttemptFromContext(ctx) < 3 {
		return Row{}, asyncop.ErrNoResult
	}
	return t.Table.Get(ctx, key)
}

var (
	table = Table{"LHR": {"LHR", "London"}, "CDG": {"CDG", "Paris"}}
	keys  = []any{"LHR", "CDG"}
)

// Each key of a stream is looked up in a table. Rows that do not exist yet and failed
// calls are retried.
func Example() {
	table := lateTable{table}
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (Row, error) { return table.Get(ctx, key) })
	op := asyncop.OrderedWaitWithRetry(lookup, 5*time.Second, 1000,
		strategies.FixedDelay[Row](3, 100*time.Millisecond).
			RetryIfResult(predicates.EmptyResult).
			RetryIfException(predicates.HasException),
		asyncop.WithDrainRetries())

	source := make(chan any, len(keys))
	for _, key := range keys {
		source <- key
	}
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	if err := op.Wait(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {LHR London}
	// {CDG Paris}
}
