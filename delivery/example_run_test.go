package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type order struct{ Cents int }

// Idempotent allows a second charge: the bank recognises an order by its id.
func (order) Idempotent() bool { return true }

var (
	errBusy  = errors.New("busy")
	declined = predicates.NewRejection("CARD_EXPIRED")
)

// charge is busy at the first visit of order 2, and refuses order 3.
func charge(ctx context.Context, o order) (string, error) {
	meta, _ := message.MetaFromContext(ctx)
	switch {
	case meta.ID == "2" && meta.Visit == 1:
		return "", errBusy
	case meta.ID == "3":
		return "", predicates.WithReason(errors.New("card expired"), declined) // which no later visit changes
	}
	return fmt.Sprintf("receipt for %d cents", o.Cents), nil
}

// work takes orders from a queue, charges for them, and puts the receipts into another
// queue, until ctx ends.
func work(ctx context.Context, orders *delivery.Queue[order], receipts *delivery.Queue[string]) (delivery.Summary, error) {
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(charge), 10*time.Second, 100,
		strategies.FixedDelay[string](2, 10*time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(orders.TakeFailure))
	return delivery.Run(ctx, orders, op, receipts)
}

func Example_run() {
	engine := memory.Open() // in a program: sqlite.Open or postgres.Open
	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(50*time.Millisecond, time.Hour))
	receipts := delivery.NewQueue[string](engine, "receipts")
	for n := 1; n <= 3; n++ {
		if err := orders.Put(context.Background(), order{Cents: n * 100}, delivery.ID(fmt.Sprint(n))); err != nil {
			fmt.Println(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background()) // in a program: signal.NotifyContext
	go func() {
		defer stop()
		for done := 0; done < 2; time.Sleep(time.Millisecond) {
			counts, _ := receipts.Counts(ctx)
			done = counts.Waiting
		}
	}()
	summary, err := work(ctx, orders, receipts)
	summary.Elapsed = 0
	fmt.Println(summary, err)
	// Output:
	// received 4 in 0s: done 2, handed over 2, rejected 0, failed 0, released 0; 0 floods <nil>
}
