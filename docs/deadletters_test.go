package docs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// chargeSales charges the elements of a stream, and keeps failed elements.
func chargeSales(ctx context.Context, engine store.Engine, all []sale, charge asyncop.AsyncFunction[sale, receipt]) error {
	sales := delivery.NewQueue[sale](engine, "sales")
	op := asyncop.OrderedWait(charge, 10*time.Second, 100,
		asyncop.WithContext(ctx),
		asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[sale]) error {
			return sales.TakeFailure(message.ContextWithMeta(ctx, message.Meta{ID: f.Element.ID}), f)
		}))
	for r, err := range op.Results(slices.Values(all)) {
		if err != nil {
			return err
		}
		fmt.Println(r)
	}
	return nil
}

func Example_deadLettersOfAStream() {
	ctx := context.Background()
	engine := memory.Open() // in a program: sqlite.Open
	charge := asyncop.Blocking(func(_ context.Context, s sale) (receipt, error) {
		if s.ID == "sale-2" {
			return "", errors.New("card expired")
		}
		return receipt("receipt of " + s.ID), nil
	})
	for range 2 { // the second run meets the same sales
		check(chargeSales(ctx, engine, []sale{{"sale-1", 100}, {"sale-2", 200}}, charge))
	}
	for _, e := range must(engine.List(ctx, "sales-dead", store.Filter{}, store.Page{Max: 10})) {
		fmt.Println("dead:", e.Meta.ID, e.Meta.LastError)
	}
	// Output:
	// receipt of sale-1
	// receipt of sale-1
	// dead: sale-2 card expired
}

// mergeNorth sends back the dead letters of a provider.
func mergeNorth(ctx context.Context, engine store.Engine, orders *delivery.Queue[sale]) error {
	j, err := jobs.New(engine, jobs.Config{})
	if err != nil {
		return err
	}
	job, err := j.Start(ctx, jobs.Spec{
		Do: store.Merge, Queue: orders.DeadLetters(), To: orders.Name(), Filter: store.Filter{Provider: "north"}, Rate: 100,
		By: "ann", Why: "north is back",
	})
	if err != nil {
		return err
	}
	_, err = j.Run(ctx, job.ID, nil)
	return err
}

func Example_mergeJob() {
	ctx := context.Background()
	engine := memory.Open()
	orders := delivery.NewQueue[sale](engine, "orders")
	for _, provider := range []string{"north", "south"} {
		m := must(orders.Encode(sale{provider, 100}))
		m.Meta.Provider, m.Cause = provider, store.Exhausted
		check(engine.Put(ctx, orders.DeadLetters(), m))
	}
	check(mergeNorth(ctx, engine, orders))
	n := must(orders.Counts(ctx))
	fmt.Println(n.Waiting, n.Dead)
	// Output: 1 1
}
