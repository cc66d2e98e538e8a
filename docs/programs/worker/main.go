// Command worker charges the orders of a queue until it is interrupted. The README shows it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
)

type order struct{ ID string }

// Idempotent says that a second call for an order does no harm, for example because the bank knows its id. Then an order that fails waits
// for a minute, and later for an hour. Otherwise it would be a dead letter at once, since nobody knows whether it was charged.
func (order) Idempotent() bool { return true }

// charge stands for your call.
func charge(ctx context.Context, o order) (string, error) {
	fmt.Println("charge order", o.ID)
	return "receipt of order " + o.ID, nil
}

func work(ctx context.Context, ids ...string) error {
	engine, err := sqlite.Open(ctx, "shop.db") // or postgres.Open(ctx, url), with workers on many machines
	if err != nil {
		return err
	}
	defer engine.Close()
	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
	receipts := delivery.NewQueue[string](engine, "receipts")
	for _, id := range ids { // or in another program
		if err := orders.Put(ctx, order{id}, delivery.ID(id)); err != nil {
			return err
		}
	}
	op := asyncop.OrderedWait(asyncop.Blocking(charge), 10*time.Second, 100,
		asyncop.WithMaxConcurrentCalls(1),
		asyncop.WithFailureSink(orders.TakeFailure))
	summary, err := delivery.Run(ctx, orders, op, receipts) // until Ctrl-C or SIGTERM
	log.Println(summary)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := work(ctx, os.Args[1:]...); err != nil {
		log.Fatal(err)
	}
}
