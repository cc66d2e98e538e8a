package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

var layers = delivery.WithLayers(
	delivery.Layer{Delay: 300 * time.Millisecond, Jitter: 0.5},
	delivery.Layer{Delay: time.Second, Jitter: 0.5},
	delivery.Layer{Delay: 5 * time.Second, Jitter: 0.5},
	delivery.Layer{Delay: 20 * time.Second, Jitter: 0.5},
)

var declined = predicates.NewRejection("DECLINED")

func queuesOn(e *jetstream.Engine) (*delivery.Queue[bank.Order], *delivery.Queue[bank.Payment]) {
	return delivery.NewQueue[bank.Order](e, "orders", layers, delivery.WithLease(lease), delivery.WithLogger(quiet)),
		delivery.NewQueue[bank.Payment](e, "payments")
}

var quiet = slog.New(slog.DiscardHandler) // killed servers and workers are noisy

// work runs a worker. All its state is in the cluster.
func work(s settings) error {
	ctx := context.Background()
	var client exactlyonce.Client
	if _, err := hex.Decode(client[:], []byte(s.Client)); err != nil {
		return err
	}
	providers := bank.NewClient(s.Dir, client)
	js, err := s.Cluster.dial()
	if err != nil {
		return err
	}
	engine, err := openEngine(ctx, js)
	if err != nil {
		return err
	}
	orders, payments := queuesOn(engine)
	charge := asyncop.Blocking(func(ctx context.Context, o bank.Order) (bank.Payment, error) {
		p, err := providers.Charge(ctx, o.First, o) // charged once: the request has the same id each time
		if errors.Is(err, bank.ErrDeclined) {
			err = predicates.WithReason(err, declined)
		}
		return p, err
	})
	// At most 20 calls at a time from all workers together.
	bothProviders := backend.New("bank", backend.Limit(20), backend.Shared(engine), backend.LongestCall(time.Second), backend.WithLogger(quiet))
	op := asyncop.UnorderedWaitWithRetry(charge, 2*time.Second, 50,
		strategies.ReasonAware(httpretry.Classifier[bank.Payment](), nil).WithMaxDelay(250*time.Millisecond),
		asyncop.WithBackend(bothProviders), asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
	fmt.Println("ready")
	_, err = delivery.Run(ctx, orders, op, payments, delivery.WithLogger(quiet))
	return err
}
