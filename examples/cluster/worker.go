package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
	"github.com/weirflow/weir/ext/jetstream/jsstore"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const deadQueue = "dead"

var layers = []ladder.Layer{
	{Queue: "later", Delay: 300 * time.Millisecond, Jitter: 0.5},
	{Queue: "much later", Delay: time.Second, Jitter: 0.5},
	{Queue: "after 5s", Delay: 5 * time.Second, Jitter: 0.5},
	{Queue: "after 20s", Delay: 20 * time.Second, Jitter: 0.5},
}

var (
	ordersCodec   = codec.JSON[bank.Order]()
	paymentsCodec = codec.JSON[bank.Payment]()

	quiet = slog.New(slog.DiscardHandler) // what is killed all the time has much to say
)

// work is the process of a worker. It has nothing of its own: what it knows is in the cluster.
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
	queues, err := again(ctx, func(ctx context.Context) (*jsstore.Store, error) { return jsstore.Open(ctx, js, queuesStream) })
	if err != nil {
		return err
	}
	l, err := ladder.New(ladder.Config[bank.Order]{
		Store: queues, Codec: ordersCodec, Layers: layers, DeadLetters: deadQueue,
		Permanent: func(f asyncop.Failure[bank.Order]) bool { return errors.Is(f.Err, bank.ErrDeclined) },
		Options:   []store.SourceOption{store.WithLease(lease), store.WithLogger(quiet)},
	})
	if err != nil {
		return err
	}
	consumer, err := again(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return js.Consumer(ctx, ordersStream, consumerName)
	})
	if err != nil {
		return err
	}
	orders, err := jsqueue.NewSource(ctx, js, consumer, ordersCodec, jsqueue.WithDeadLetters(queues, deadQueue), jsqueue.WithLogger(quiet))
	if err != nil {
		return err
	}
	payments := jsqueue.NewSink(js, paymentsStream, paymentsCodec, jsqueue.WithConfirmWithin(2*time.Second))
	charge := asyncop.Blocking(func(ctx context.Context, o bank.Order) (bank.Payment, error) {
		return providers.Charge(ctx, o.First, o) // its request has the same id each time, so it is charged once
	})
	op := asyncop.UnorderedWaitWithRetry(charge, 2*time.Second, 50,
		strategies.ReasonAware(httpretry.Classifier[bank.Payment](), nil).WithMaxDelay(250*time.Millisecond),
		asyncop.WithFailureSink(l.Take), asyncop.WithLogger(quiet))
	fmt.Println("ready")
	_, err = delivery.Run(ctx, l.Source(orders), op, payments, delivery.WithLogger(quiet))
	return err
}
