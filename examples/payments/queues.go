package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

// openEngine opens the engine: in a file, in a database, or on servers. The rest of the
// program does not depend on it.
func openEngine(ctx context.Context, at location) (store.Inspector, error) {
	switch schemeOf(at.URL) {
	case onPostgres:
		return postgres.Open(ctx, at.URL, postgres.WithLogger(quiet))
	case onJetStream:
		return jetstream.Open(ctx, at.URL, jetstream.WithLogger(quiet))
	}
	return sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"), sqlite.WithLogger(quiet))
}

type onQueues struct {
	at     location
	engine store.Inspector
	queues
}

func newQueues(ctx context.Context, at location) (engine, error) {
	e, err := openEngine(ctx, at)
	if err != nil {
		return nil, err
	}
	return &onQueues{at, e, queuesOn(e, at)}, nil
}

func (e *onQueues) location() location { return e.at }

func (e *onQueues) keeps() store.Engine { return e.engine }

// look counts orders. An order may be in two queues, because it is put into the next one
// before it is removed.
func (e *onQueues) look(ctx context.Context) (c counts, err error) {
	for _, q := range e.orders {
		n, err := q.Counts(ctx)
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
		of, err := listAll(ctx, e.in(q.DeadLetters()), ordersCodec)
		if err != nil {
			return nil, err
		}
		dead = append(dead, of...)
	}
	return dead, nil
}

func (e *onQueues) receipts(ctx context.Context) ([]bank.Payment, error) {
	return listAll(ctx, e.in(e.payments.Name()), paymentsCodec)
}

func (e *onQueues) in(queue string) func(context.Context, store.Filter, store.Page) ([]store.Entry, error) {
	return func(ctx context.Context, f store.Filter, p store.Page) ([]store.Entry, error) {
		return e.engine.List(ctx, queue, f, p)
	}
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
