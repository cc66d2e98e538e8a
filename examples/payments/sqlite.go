package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqlitestore"
)

// openSQLite opens the ends: all are queues in queues.db.
func openSQLite(ctx context.Context, at location) (ends, error) {
	db, err := sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"))
	if err != nil {
		return ends{}, err
	}
	queues := sqlitestore.New(db)
	l, err := newLadder(queues)
	if err != nil {
		return ends{}, err
	}
	orders := store.NewSource(queues, ordersQueue, deadQueue, ordersCodec, store.WithLease(lease), store.WithLogger(quiet))
	return ends{
		orders:   l.Source(orders),
		failed:   l.Take,
		payments: store.NewSink(queues, paymentsQueue, paymentsCodec),
		close:    func() { _ = errors.Join(queues.Close(), db.Close()) }, // all that counts is committed
	}, nil
}

// inSQLite is the engine of the supervisor.
type inSQLite struct {
	at location
	db *sqlite.DB
	stored
}

func newSQLite(ctx context.Context, at location) (engine, error) {
	db, err := sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"))
	if err != nil {
		return nil, err
	}
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &inSQLite{at, db, stored{sqlitestore.New(db)}}, nil
}

func (e *inSQLite) location() location { return e.at }

func (e *inSQLite) put(ctx context.Context, orders []bank.Order) error {
	return putAll(ctx, store.NewSink(e.queues, ordersQueue, ordersCodec), orders)
}

func (e *inSQLite) look(ctx context.Context) (counts, error) {
	waiting, err := e.count(ctx, ordersQueue) // first: see count
	if err != nil {
		return counts{}, err
	}
	c, err := e.stored.look(ctx)
	if err != nil {
		return counts{}, err
	}
	c.open += waiting
	c.paid, err = e.count(ctx, paymentsQueue)
	return c, err
}

func (e *inSQLite) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	for page := (store.Page{Max: 500}); ; {
		entries, err := e.queues.List(ctx, paymentsQueue, store.Filter{}, page)
		if err != nil || len(entries) == 0 {
			return payments, err
		}
		for _, entry := range entries {
			p, err := paymentsCodec.Decode(entry.Payload)
			if err != nil {
				return nil, err
			}
			payments = append(payments, p)
		}
		page.After = entries[len(entries)-1].Position
	}
}

func (e *inSQLite) close(bool) error { return errors.Join(e.queues.Close(), e.db.Close()) }
