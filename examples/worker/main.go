// Command worker packs orders that wait in a queue in shop.db. Its arguments are numbers
// of orders to be put there first. See README.md.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/predicates"
)

type order struct{ Number string }

func (order) Idempotent() bool { return true } // a second call for an order does no harm

func pack(_ context.Context, o order) (string, error) {
	if _, err := strconv.Atoi(o.Number); err != nil {
		return "", predicates.WithReason(err, predicates.NewRejection("NOT_A_NUMBER")) // which no retry mends
	}
	time.Sleep(100 * time.Millisecond) // a call of a service, which may fail
	return "parcel " + o.Number, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := sqlite.Open(ctx, "shop.db") // or postgres.Open(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close() //nolint:errcheck // all that counts is on disk
	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
	parcels := delivery.NewQueue[string](engine, "parcels")
	for _, n := range os.Args[1:] {
		if err := orders.Put(ctx, order{n}, delivery.ID(n)); err != nil {
			log.Fatal(err)
		}
	}
	op := asyncop.OrderedWait(asyncop.Blocking(pack), 10*time.Second, 4, asyncop.WithFailureSink(orders.TakeFailure))
	if _, err := delivery.Run(ctx, orders, op, parcels); err != nil {
		log.Fatal(err)
	}
}
