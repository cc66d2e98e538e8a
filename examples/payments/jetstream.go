package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
	"github.com/weirflow/weir/ext/jetstream/jsstore"
)

// openJetStream opens the ends: streams of orders and of payments, and a stream with the queues of the ladder.
func openJetStream(ctx context.Context, at location) (ends, error) {
	js, err := dial(at)
	if err != nil {
		return ends{}, err
	}
	queues, err := jsstore.Open(ctx, js, at.queues())
	if err != nil {
		return ends{}, err
	}
	failed := ordersOn(queues, at)
	consumer, err := js.Consumer(ctx, at.stream(ordersQueue), consumerName)
	if err != nil {
		return ends{}, err
	}
	orders, err := jsqueue.NewSource(ctx, js, consumer, ordersCodec, jsqueue.WithDeadLetters(queues, failed.DeadLetters()), jsqueue.WithLogger(quiet))
	if err != nil {
		return ends{}, err
	}
	return ends{
		orders:   failed.Source(orders),
		failed:   failed.TakeFailure,
		payments: jsqueue.NewSink(js, at.stream(paymentsQueue), paymentsCodec),
		close: func() {
			_ = queues.Close() // all that counts is confirmed
			js.Conn().Close()
		},
	}, nil
}

const consumerName = "workers"

func (l location) stream(name string) string { return l.Name + "-" + name } // its only subject has the same name
func (l location) queues() string            { return l.stream("queues") }

func dial(at location) (jetstream.JetStream, error) {
	nc, err := nats.Connect(at.URL, nats.MaxReconnects(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

// inJetStream is the engine of the supervisor.
type inJetStream struct {
	at location
	js jetstream.JetStream
	stored
}

// newJetStream makes the streams, and the consumer that the workers share.
func newJetStream(ctx context.Context, at location) (_ *inJetStream, err error) {
	js, err := dial(at)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			js.Conn().Close()
		}
	}()
	orders, payments := at.stream(ordersQueue), at.stream(paymentsQueue)
	for _, stream := range []jetstream.StreamConfig{
		{Name: orders, Subjects: []string{orders}, Retention: jetstream.WorkQueuePolicy},
		{Name: payments, Subjects: []string{payments}, Duplicates: time.Hour}, // a payment that is published twice is there once
		jsstore.StreamConfig(at.queues()),
	} {
		if _, err := js.CreateOrUpdateStream(ctx, stream); err != nil {
			return nil, err
		}
	}
	_, err = js.CreateOrUpdateConsumer(ctx, orders, jetstream.ConsumerConfig{
		Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: lease, MaxAckPending: 1000,
	})
	if err != nil {
		return nil, err
	}
	queues, err := jsstore.Open(ctx, js, at.queues())
	if err != nil {
		return nil, err
	}
	return &inJetStream{at, js, stored{queues, ordersOn(queues, at)}}, nil
}

func (e *inJetStream) location() location { return e.at }

func (e *inJetStream) put(ctx context.Context, orders []bank.Order) error {
	return putAll(ctx, jsqueue.NewSink(e.js, e.at.stream(ordersQueue), ordersCodec), orders)
}

func (e *inJetStream) look(ctx context.Context) (counts, error) {
	waiting, err := e.messages(ctx, ordersQueue) // first: orders are put before they are removed
	if err != nil {
		return counts{}, err
	}
	c, err := e.stored.look(ctx)
	if err != nil {
		return counts{}, err
	}
	c.open += waiting
	c.paid, err = e.messages(ctx, paymentsQueue)
	return c, err
}

func (e *inJetStream) messages(ctx context.Context, name string) (int64, error) {
	s, err := e.js.Stream(ctx, e.at.stream(name)) // asks for what it has
	if err != nil {
		return 0, err
	}
	return int64(s.CachedInfo().State.Msgs), nil
}

func (e *inJetStream) receipts(context.Context) ([]bank.Payment, error) {
	return bank.ReadPayments(jscheckpoint.NewInput(e.js, e.at.stream(paymentsQueue), paymentsCodec, jscheckpoint.WithEnd()))
}

func (e *inJetStream) close(temporary bool) error {
	defer e.js.Conn().Close()
	err := e.queues.Close()
	if temporary {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, stream := range []string{e.at.stream(ordersQueue), e.at.stream(paymentsQueue), e.at.queues()} {
			err = errors.Join(err, e.js.DeleteStream(ctx, stream))
		}
	}
	return err
}
