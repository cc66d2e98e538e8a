// Command worker charges the orders of a queue until it is interrupted. The README shows
// it.
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

func (order) Idempotent() bool { return true } // a second call for an order does no harm

func charge(ctx context.Context, o order) (string, error) {
	fmt.Println("charge order", o.ID) // your call
	return "receipt of order " + o.ID, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := sqlite.Open(ctx, "shop.db") // or postgres.Open(ctx, url), with workers on many machines
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
	receipts := delivery.NewQueue[string](engine, "receipts")
	for _, id := range os.Args[1:] { // or in another program
		if err := orders.Put(ctx, order{id}, delivery.ID(id)); err != nil {
			log.Fatal(err)
		}
	}
	op := asyncop.OrderedWait(asyncop.Blocking(charge), 10*time.Second, 1, asyncop.WithFailureSink(orders.TakeFailure))
	if _, err := delivery.Run(ctx, orders, op, receipts); err != nil { // until Ctrl-C or SIGTERM
		log.Fatal(err)
	}
}
