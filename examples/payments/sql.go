package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

// openSQL opens the engine in a file or in a database. All else is the same.
func openSQL(ctx context.Context, at location) (store.Inspector, error) {
	if at.Engine == onPostgres {
		return postgres.Open(ctx, at.URL, postgres.WithLogger(quiet))
	}
	return sqlite.Open(ctx, filepath.Join(at.Dir, "queues.db"), sqlite.WithLogger(quiet))
}

// queuesOn returns the queues of a run. Several runs may be in one database.
func queuesOn(engine delivery.Engine, at location) (orders *delivery.Queue[bank.Order], payments *delivery.Queue[bank.Payment]) {
	return ordersOn(engine, at), delivery.NewQueue[bank.Payment](engine, at.queue(paymentsQueue))
}

// inSQL is the engine of the supervisor.
type inSQL struct {
	at       location
	engine   store.Inspector
	payments *delivery.Queue[bank.Payment]
	stored
}

func newSQL(ctx context.Context, at location) (engine, error) {
	e, err := openSQL(ctx, at)
	if err != nil {
		return nil, err
	}
	orders, payments := queuesOn(e, at)
	return &inSQL{at, e, payments, stored{e, orders}}, nil
}

func (e *inSQL) location() location { return e.at }

func (e *inSQL) put(ctx context.Context, orders []bank.Order) error {
	return putAll(ctx, e.orders, orders)
}

func (e *inSQL) look(ctx context.Context) (counts, error) {
	c, err := e.stored.look(ctx)
	if err != nil {
		return c, err
	}
	paid, err := e.payments.Counts(ctx)
	c.paid = int64(paid.Waiting)
	return c, err
}

func (e *inSQL) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	for page := (store.Page{Max: 500}); ; {
		entries, err := e.engine.List(ctx, e.payments.Name(), store.Filter{}, page)
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

func (e *inSQL) close(temporary bool) (err error) {
	if temporary && e.at.Engine == onPostgres {
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
