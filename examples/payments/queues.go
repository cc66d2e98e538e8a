package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

// openEngine opens the engine: in a file, in a database, or on servers. All else is the same.
func openEngine(ctx context.Context, at location) (store.Inspector, error) {
	switch at.Engine {
	case onPostgres:
		return postgres.Open(ctx, at.URL, postgres.WithLogger(quiet))
	case onJetStream:
		return jetstream.Open(ctx, at.URL, jetstream.WithLogger(quiet))
	}
	return sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"), sqlite.WithLogger(quiet))
}

// onQueues is the engine of the supervisor, and of workers. Several runs may be in one database, or on the same servers.
type onQueues struct {
	at       location
	engine   store.Inspector
	orders   map[string]*delivery.Queue[bank.Order] // by provider
	payments *delivery.Queue[bank.Payment]
}

func newQueues(ctx context.Context, at location) (*onQueues, error) {
	e, err := openEngine(ctx, at)
	if err != nil {
		return nil, err
	}
	q := &onQueues{at, e, map[string]*delivery.Queue[bank.Order]{}, delivery.NewQueue[bank.Payment](e, at.queue(paymentsQueue))}
	for _, provider := range bank.Providers {
		q.orders[provider] = ordersOn(e, at, provider)
	}
	return q, nil
}

// ends returns those of a worker.
func (e *onQueues) ends(provider string) ends {
	orders := e.orders[provider]
	return ends{orders: orders, failed: orders.TakeFailure, others: e.orders[bank.Other(provider)], payments: e.payments, close: func() {}}
}

func (e *onQueues) location() location { return e.at }

func (e *onQueues) put(ctx context.Context, orders []bank.Order) error {
	sinks := map[string]delivery.Sink[bank.Order]{}
	for provider, q := range e.orders {
		sinks[provider] = q
	}
	return putFirst(ctx, sinks, orders)
}

// look counts. Orders go from queue to queue, and are put before they are removed.
func (e *onQueues) look(ctx context.Context) (c counts, err error) {
	for _, provider := range bank.Providers {
		n, err := e.orders[provider].Counts(ctx)
		if err != nil {
			return c, err
		}
		c.open += int64(n.Waiting + n.Retrying)
		c.dead += int64(n.Dead)
	}
	paid, err := e.payments.Counts(ctx)
	c.paid = int64(paid.Waiting)
	return c, err
}

func (e *onQueues) dead(ctx context.Context) (dead []bank.Order, err error) {
	for _, q := range e.orders {
		of, err := listAll(ctx, e.engine, q.DeadLetters(), ordersCodec)
		if err != nil {
			return nil, err
		}
		dead = append(dead, of...)
	}
	return dead, nil
}

func (e *onQueues) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	return listAll(ctx, e.engine, e.payments.Name(), paymentsCodec)
}

// listAll returns all that is in a queue.
func listAll[T any](ctx context.Context, engine store.Inspector, queue string, c codec.Codec[T]) (all []T, err error) {
	for page := (store.Page{Max: 500}); ; {
		entries, err := engine.List(ctx, queue, store.Filter{}, page)
		if err != nil || len(entries) == 0 {
			return all, err
		}
		for _, entry := range entries {
			v, err := c.Decode(entry.Payload)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		page.After = entries[len(entries)-1].Position
	}
}

func (e *onQueues) close(temporary bool) (err error) {
	if temporary && e.at.Engine != onSQLite {
		names, listed := e.engine.Queues(context.Background())
		err = listed
		for _, name := range names {
			if e.at.owns(name) {
				_, purged := e.engine.Purge(context.Background(), name, store.Filter{})
				err = errors.Join(err, purged)
			}
		}
	}
	return errors.Join(err, e.engine.Close())
}
