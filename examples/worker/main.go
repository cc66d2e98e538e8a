// Command worker packs orders that wait in a queue in shop.db. Its arguments are numbers of orders to be put there first. See README.md.
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
	"github.com/weirflow/weir/strategies"
)

type order struct{ Number string }

// Idempotent says that an order may be packed twice. Otherwise an order whose call may have taken effect, as after a timeout, would be
// a dead letter at once, without waiting in a layer.
func (order) Idempotent() bool { return true }

// notANumber is the reason of orders that will never succeed. They are dead letters at once.
var notANumber = predicates.NewRejection("NOT_A_NUMBER")

func pack(_ context.Context, o order) (string, error) {
	if _, err := strconv.Atoi(o.Number); err != nil {
		return "", predicates.WithReason(err, notANumber)
	}
	time.Sleep(100 * time.Millisecond) // a call of a service, which may fail
	return "parcel " + o.Number, nil
}

func work(ctx context.Context, numbers ...string) error {
	engine, err := sqlite.Open(ctx, "shop.db") // or postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer engine.Close() //nolint:errcheck // all that counts is on disk
	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
	parcels := delivery.NewQueue[string](engine, "parcels")
	for _, n := range numbers {
		if err := orders.Put(ctx, order{n}, delivery.ID(n)); err != nil {
			return err
		}
	}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(pack), 10*time.Second, 4,
		strategies.FixedDelay[string](3, 100*time.Millisecond).
			RetryIfException(predicates.Not(predicates.ErrorIs(strconv.ErrSyntax))), // which no retry mends
		asyncop.WithFailureSink(orders.TakeFailure))
	summary, err := delivery.Run(ctx, orders, op, parcels)
	log.Print(summary)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := work(ctx, os.Args[1:]...)
	if stop(); err != nil {
		log.Fatal(err)
	}
}
