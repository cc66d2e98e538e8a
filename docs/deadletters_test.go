package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/deadfile"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// chargeDead processes dead letters again.
func chargeDead(ctx context.Context, dead *deadfile.File[sale], charge asyncop.AsyncFunction[sale, receipt], receipts delivery.Sink[receipt]) error {
	replay, err := dead.Replay() // dead is a *deadfile.File
	if err != nil {
		return err
	}
	op := asyncop.OrderedWait(charge, 10*time.Second, 100,
		asyncop.WithFailureSink(dead.Take)) // what fails again is a dead letter again
	_, err = delivery.Run(ctx, replay, op, receipts) // it returns when all are done
	return err
}

func Example_deadFile() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "dead"))
	defer os.RemoveAll(dir)
	dead := must(deadfile.Open(dir, codec.JSON[sale]()))
	defer dead.Close()
	for n := 1; n <= 2; n++ {
		v := sale{fmt.Sprint("sale-", n), 100}
		check(dead.Append(ctx, deadfile.Entry[sale]{Value: v, Meta: message.Meta{ID: v.ID}}))
	}

	expired := errors.New("card expired")
	charge := asyncop.Blocking(func(_ context.Context, s sale) (receipt, error) {
		if s.ID == "sale-2" {
			return "", expired
		}
		return receipt("receipt of " + s.ID), nil
	})
	receipts := make(chan receipt, 2)
	check(chargeDead(ctx, dead, charge, channel.NewSink(receipts)))
	fmt.Println(<-receipts, len(receipts))

	again := must(dead.Replay())
	for _, m := range must(again.Receive(ctx, 10)) {
		fmt.Println("dead:", m.Value.ID, m.Meta().Merges, m.Meta().LastError)
		m.Ack()
	}
	check(again.Close(ctx))
	// Output:
	// receipt of sale-1 0
	// dead: sale-2 2 card expired
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

func Example_deadFileID() {
	dir := must(os.MkdirTemp("", "dead"))
	defer os.RemoveAll(dir)
	dead := must(deadfile.Open(dir, codec.JSON[sale]()))
	defer dead.Close()
	charge := asyncop.Blocking(func(context.Context, sale) (receipt, error) { return "", errors.New("card expired") })
	op := asyncop.OrderedWait(charge, 10*time.Second, 100,
		asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[sale]) error {
			return dead.Take(message.ContextWithMeta(ctx, message.Meta{ID: f.Element.ID}), f)
		}))
	for range op.Results(slices.Values([]sale{{"sale-1", 100}})) {
	}
	replay := must(dead.Replay())
	for _, m := range must(replay.Receive(context.Background(), 10)) {
		fmt.Println(m.Meta().ID, m.Meta().LastError)
		m.Ack()
	}
	check(replay.Close(context.Background()))
	// Output: sale-1 card expired
}
