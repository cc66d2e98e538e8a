package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// workOn sells two tickets from a queue. The second one is sold at its second visit.
func workOn(ctx context.Context, file string) error {
	engine, err := sqlite.Open(ctx, file) // makes the file and the tables, if they are missing
	if err != nil {
		return err
	}
	defer engine.Close()

	sales := delivery.NewQueue[sale](engine, "sales", delivery.RetryAfter(20*time.Millisecond))
	for _, s := range []sale{{"sale-1", 100}, {"sale-2", 200}} {
		if err := sales.Put(ctx, s, delivery.ID(s.ID)); err != nil {
			return err // after nil the message is on disk
		}
	}

	sell := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		meta, _ := message.MetaFromContext(ctx)
		if s.ID == "sale-2" && meta.Visit == 1 {
			return "", errBusy
		}
		return receipt(s.ID), nil
	})
	strategy := strategies.PolicyOf(strategies.FixedDelay[receipt](2, time.Millisecond).
		RetryIfException(predicates.HasException)).
		Idempotent() // a sale may be sent twice: the bank knows its id
	op := asyncop.UnorderedWaitWithRetry(sell, 10*time.Second, 100, strategy,
		asyncop.WithFailureSink(sales.TakeFailure))
	left := 2
	for m, err := range op.Messages(receive(ctx, sales)) {
		if err != nil {
			return errors.Join(err, sales.Close(ctx))
		}
		fmt.Println("sold", m.Value)
		m.Ack()
		if left--; left == 0 {
			break
		}
	}
	return sales.Close(ctx)
}

func Example_queue() {
	dir, err := os.MkdirTemp("", "queue")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fmt.Println(workOn(context.Background(), filepath.Join(dir, "queues.db")))
	// Output:
	// sold sale-1
	// sold sale-2
	// <nil>
}
