package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	lockTimeout = 1500 * time.Millisecond // then another visit takes over a killed one's work; longer than bank.Patience
	orderTime   = 1500 * time.Millisecond // for one visit of an order, over all its attempts
	atOnce      = 16                      // concurrent calls to a provider
)

const jobTables = `CREATE TABLE IF NOT EXISTS job (client TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS payments (
	order_id TEXT PRIMARY KEY,
	provider TEXT NOT NULL, -- '': declined by all
	charge   TEXT NOT NULL,
	cents    INTEGER NOT NULL
) STRICT`

// job pays the orders that wait for a provider. Its database has the completed steps of
// each order, so an order that is redelivered after a kill continues with the next step.
type job struct {
	settings
	bank     *bank.Client
	provider string
	backend  *backend.Backend
	pays     *keys.Operation
}

// errElsewhere is the error of an order that the other provider must charge.
var errElsewhere = errors.New("declined; the other provider is to be asked")

// policy repeats requests without an answer, which the provider recognises by their ids,
// and calls that find the database busy.
func policy() *strategies.Policy[bank.Payment] {
	busy, declined := predicates.NewReason("DATABASE_BUSY", true, false), predicates.NewRejection("DECLINED")
	return strategies.ReasonAware(predicates.Classifiers(
		func(a *predicates.Attempt[bank.Payment]) (predicates.Reason, bool) {
			return busy, errors.Is(a.Err, exactlyonce.ErrInProgress)
		},
		func(a *predicates.Attempt[bank.Payment]) (predicates.Reason, bool) {
			return declined, errors.Is(a.Err, bank.ErrDeclined) || errors.Is(a.Err, errElsewhere)
		},
		httpretry.Classifier[bank.Payment](),
	), nil)
}

func work(s settings) error {
	ctx := context.Background()
	db, err := openJob(ctx, s.Dir)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // everything that counts is committed
	client, err := identity(ctx, db)
	if err != nil {
		return err
	}
	charges := bank.NewClient(s.Dir, client)
	charges.WithoutIDs = s.Break == withoutTracking
	engine, err := openWorker(ctx, s)
	if err != nil {
		return err
	}
	defer engine.Close() //nolint:errcheck // everything that counts is committed
	q := queuesOn(engine, s.At)
	ended := make(chan error, len(bank.Providers))
	var backends []*backend.Backend
	for _, provider := range bank.Providers {
		j := &job{settings: s, bank: charges, provider: provider, backend: backend.New(provider, backend.Limit(atOnce), backend.WithLogger(quiet))}
		j.pays = keys.New(db.Writer(), keys.SQLite, keys.Config{LockTimeout: lockTimeout, Logger: quiet}).Operation("pay", j.steps)
		backends = append(backends, j.backend)
		go func() { ended <- j.run(ctx, q) }() // ends with the process
	}
	fmt.Println("ready")
	go report(charges, backends) // ends with the process
	return <-ended
}

// openWorker opens the engine that the URL's scheme selects.
func openWorker(ctx context.Context, s settings) (store.Engine, error) {
	if schemeOf(s.At.URL) == onKafka {
		return openKafka(ctx, s.At, s.Worker)
	}
	return openEngine(ctx, s.At)
}

// run runs the worker of one provider.
func (j *job) run(ctx context.Context, q queues) error {
	orders := q.orders[j.provider]
	failed := func(ctx context.Context, f asyncop.Failure[bank.Order]) error {
		if errors.Is(f.Err, errElsewhere) {
			return putAll(ctx, q.orders[bank.Other(j.provider)], []bank.Order{f.Element})
		}
		return orders.TakeFailure(ctx, f)
	}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(j.pay), orderTime, 100, policy(),
		asyncop.WithBackend(j.backend), asyncop.WithFailureSink(failed), asyncop.WithLogger(quiet))
	_, err := delivery.Run(ctx, orders, op, q.payments, delivery.WithLogger(quiet))
	return err
}

// openJob opens the job's database. Workers on several machines need a database that all
// reach, such as PostgreSQL (keys.PostgreSQL).
func openJob(ctx context.Context, dir string) (*sqlite.DB, error) {
	return sqlite.OpenDB(ctx, filepath.Join(dir, "job.db"))
}

func prepareJob(ctx context.Context, dir string) error {
	db, err := openJob(ctx, dir)
	if err != nil {
		return err
	}
	err = keys.New(db.Writer(), keys.SQLite, keys.Config{}).Migrate(ctx)
	if err == nil {
		_, err = db.Writer().ExecContext(ctx, jobTables)
	}
	if err == nil {
		fresh := exactlyonce.NewClient()
		_, err = db.Writer().ExecContext(ctx, "INSERT INTO job (client) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM job)", fresh.String())
	}
	return errors.Join(err, db.Close())
}

// identity returns the client part of request ids, the same in each worker.
func identity(ctx context.Context, db *sqlite.DB) (client exactlyonce.Client, err error) {
	var stored string
	if err := db.Reader().QueryRowContext(ctx, "SELECT client FROM job").Scan(&stored); err != nil {
		return client, err
	}
	_, err = hex.Decode(client[:], []byte(stored))
	return client, err
}

// pay is the operator's function. A repeated call for an order continues where the
// earlier one stopped. For a paid order it returns the payment.
func (j *job) pay(ctx context.Context, o bank.Order) (p bank.Payment, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return p, err
	}
	response, err := j.pays.Do(ctx, keys.Request{User: "job", Key: o.ID, Method: http.MethodPost, Path: "/payments", Body: body})
	if err == nil {
		err = json.Unmarshal(response.Body, &p)
	}
	switch {
	case err != nil || p.Provider != "":
	case j.provider == o.First: // the provider tried last keeps the dead letter
		err = errElsewhere
	default:
		err = fmt.Errorf("by both providers: %w", bank.ErrDeclined)
	}
	return p, err
}

// steps are an order's steps: choose a provider and store the choice, call the provider,
// and store its answer.
func (j *job) steps(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
	var o bank.Order
	if err := json.Unmarshal(run.Body, &o); err != nil {
		return exactlyonce.Response{}, err
	}
	paid, err := j.chargeOnce(ctx, run, o)
	if errors.Is(err, keys.ErrRefused) { // by both providers
		paid, err = bank.Payment{Order: o.ID}, nil
	}
	if err != nil {
		return exactlyonce.Response{}, err
	}
	return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO payments (order_id, provider, charge, cents) VALUES (?, ?, ?, ?)",
			o.ID, paid.Provider, paid.Charge, o.Cents)
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusCreated, paid)
	})
}

// chargeOnce calls one provider until it answers, and the other one only if the first has
// declined.
func (j *job) chargeOnce(ctx context.Context, run *keys.Run, o bank.Order) (bank.Payment, error) {
	if j.Break == withoutSticky {
		return j.chargeAnywhere(ctx, run, o)
	}
	choose := func(refused []string) (provider string, ok bool) {
		switch len(refused) {
		case 0:
			return o.First, true
		case 1:
			return bank.Other(o.First), true
		}
		return "", false
	}
	return keys.CallProvider(ctx, run, "charge", choose, func(ctx context.Context, provider, _ string) (bank.Payment, error) {
		if provider != j.provider { // the other provider has its own backend
			return bank.Payment{}, errElsewhere
		}
		return j.charge(ctx, provider, o)
	})
}

// chargeAnywhere shows the purpose of the stored choice: it calls the other provider
// after any error.
func (j *job) chargeAnywhere(ctx context.Context, run *keys.Run, o bank.Order) (bank.Payment, error) {
	return keys.Call(ctx, run, "charge", func(ctx context.Context, _ string) (bank.Payment, error) {
		p, err := j.charge(ctx, o.First, o)
		if err != nil {
			p, err = j.charge(ctx, bank.Other(o.First), o)
		}
		return p, err
	})
}

func (j *job) charge(ctx context.Context, provider string, o bank.Order) (bank.Payment, error) {
	p, err := j.bank.Charge(ctx, provider, o)
	if errors.Is(err, bank.ErrDeclined) {
		err = fmt.Errorf("%w: %w", keys.ErrRefused, err)
	}
	return p, err
}

// sample is a worker's report to its supervisor, one line of JSON.
type sample struct {
	Calls   int64 `json:"calls"`
	InDoubt int64 `json:"inDoubt"`
	Trips   int64 `json:"trips"` // how often a backend went down
}

func (s *sample) add(more sample) {
	s.Calls += more.Calls
	s.InDoubt += more.InDoubt
	s.Trips += more.Trips
}

func report(c *bank.Client, backends []*backend.Backend) {
	for range time.Tick(20 * time.Millisecond) {
		var s sample
		s.Calls, s.InDoubt = c.Calls()
		for _, b := range backends {
			s.Trips += b.Stats().Trips
		}
		if line, err := json.Marshal(s); err == nil {
			fmt.Println(string(line))
		}
	}
}

func readPayments(ctx context.Context, dir string) (map[string]bank.Booked, error) {
	db, err := openJob(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // opened only to read
	rows, err := db.Reader().QueryContext(ctx, "SELECT order_id, provider, charge, cents FROM payments")
	if err != nil {
		return nil, err
	}
	paid := map[string]bank.Booked{}
	for rows.Next() {
		var id string
		var b bank.Booked
		if err := rows.Scan(&id, &b.Provider, &b.Charge, &b.Cents); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		paid[id] = b
	}
	return paid, errors.Join(rows.Err(), rows.Close())
}
