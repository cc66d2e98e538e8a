package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

// openEngine opens the engine: in a file, in a database, or on servers. All else is the same.
func openEngine(ctx context.Context, at location) (store.Inspector, error) {
	switch schemeOf(at.URL) {
	case onPostgres:
		return postgres.Open(ctx, at.URL, postgres.WithLogger(quiet))
	case onJetStream:
		return jetstream.Open(ctx, at.URL, jetstream.WithLogger(quiet))
	}
	return sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"), sqlite.WithLogger(quiet))
}

// queuesOn returns the queues of a run. Several runs may be in one database, or on the same servers.
func queuesOn(engine delivery.Engine, at location) (orders *delivery.Queue[bank.Order], payments *delivery.Queue[bank.Payment]) {
	return ordersOn(engine, at), delivery.NewQueue[bank.Payment](engine, at.queue(paymentsQueue))
}

// onQueues is the engine of the supervisor.
type onQueues struct {
	at       location
	engine   store.Inspector
	payments *delivery.Queue[bank.Payment]
	stored
}

func newQueues(ctx context.Context, at location) (engine, error) {
	e, err := openEngine(ctx, at)
	if err != nil {
		return nil, err
	}
	orders, payments := queuesOn(e, at)
	return &onQueues{at, e, payments, stored{e, orders}}, nil
}

func (e *onQueues) location() location { return e.at }

func (e *onQueues) put(ctx context.Context, orders []bank.Order) error {
	return putAll(ctx, e.orders, orders)
}

func (e *onQueues) look(ctx context.Context) (counts, error) {
	c, err := e.stored.look(ctx)
	if err != nil {
		return c, err
	}
	paid, err := e.payments.Counts(ctx)
	c.paid = int64(paid.Waiting)
	return c, err
}

func (e *onQueues) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	return receipts(ctx, func(ctx context.Context, f store.Filter, p store.Page) ([]store.Entry, error) {
		return e.engine.List(ctx, e.payments.Name(), f, p)
	})
}

func (e *onQueues) close(temporary bool) (err error) {
	if temporary && e.at.URL != "" {
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
