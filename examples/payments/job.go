package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	patience    = 300 * time.Millisecond  // for an answer
	lockTimeout = 1500 * time.Millisecond // after it another run takes over what a killed one has begun; longer than patience
	orderTime   = 2 * time.Second         // for a visit of an order, over its attempts
	shortWait   = 250 * time.Millisecond  // a longer one leaves the operator
	atOnce      = 16                      // calls
)

const jobTables = `CREATE TABLE IF NOT EXISTS job (client TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS payments (
	order_id TEXT PRIMARY KEY,
	provider TEXT NOT NULL, -- '': declined by all
	charge   TEXT NOT NULL,
	cents    INTEGER NOT NULL
) STRICT`

// payment is what became of an order.
type payment struct {
	Provider string `json:"provider,omitempty"` // "": declined by all
	Charge   string `json:"charge,omitempty"`
}

// job pays the orders. What it knows is in its database: of each order the steps that are done. So a job that was killed is
// started again, reads the stream from its beginning, and goes on where each order was.
type job struct {
	settings
	client exactlyonce.Client // of the ids
	http   *http.Client
	pays   *keys.Operation

	progress progress
}

// progress is how far this run of the job has come.
type progress struct{ done, calls, inDoubt, declined atomic.Int64 }

// policy repeats what was not answered: each request has an id, so that a provider recognises it, and what found the database
// busy.
func policy() *strategies.Policy[payment] {
	busy := predicates.NewReason("DATABASE_BUSY", true, false)
	return strategies.ReasonAware(predicates.Classifiers(
		func(a *predicates.Attempt[payment]) (predicates.Reason, bool) {
			return busy, errors.Is(a.Err, exactlyonce.ErrInProgress) || errors.Is(a.Err, keys.ErrLockLost) || errors.Is(a.Err, keys.ErrConflict)
		},
		httpretry.Classifier[payment](),
	), nil).WithMaxDelay(shortWait)
}

// runJob is the process of the job.
func runJob(s settings) error {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, filepath.Join(s.Dir, "job.db"))
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // all that counts is committed
	if err := keys.Migrate(ctx, db.Writer(), keys.SQLite); err != nil {
		return err
	}
	j := &job{settings: s, http: &http.Client{Timeout: patience, Transport: httpretry.Transport(dialer(s.Dir))}}
	if j.client, err = identity(ctx, db); err != nil {
		return err
	}
	store := keys.New(db.Writer(), keys.SQLite, keys.Config{LockTimeout: lockTimeout, Logger: slog.New(slog.DiscardHandler)})
	j.pays = store.Operation("pay", j.steps)

	fmt.Println("ready")
	stop := j.report()
	defer stop()
	queues, closeQueues, err := openQueues(ctx, s.Dir)
	if err != nil {
		return err
	}
	defer closeQueues()
	l, err := newLadder(queues)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(j.pay), orderTime, 100, policy(),
		asyncop.WithMaxConcurrentCalls(atOnce), asyncop.WithFailureSink(l.Take), asyncop.WithLogger(quiet))
	_, err = delivery.Run(ctx, l.Source(newStream(j, queues)), op, &counter{progress: &j.progress, seen: map[string]bool{}},
		delivery.WithFloodGuard(1, 100), // one of two providers may be down: the orders of the other go on
		delivery.WithLogger(quiet))
	return err
}

// identity returns the client of the ids, the same in each run of the job.
func identity(ctx context.Context, db *sqlite.DB) (client exactlyonce.Client, err error) {
	if _, err := db.Writer().ExecContext(ctx, jobTables); err != nil {
		return client, err
	}
	fresh := exactlyonce.NewClient()
	if _, err := db.Writer().ExecContext(ctx, "INSERT INTO job (client) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM job)", fresh.String()); err != nil {
		return client, err
	}
	var stored string
	if err := db.Reader().QueryRowContext(ctx, "SELECT client FROM job").Scan(&stored); err != nil {
		return client, err
	}
	_, err = hex.Decode(client[:], []byte(stored))
	return client, err
}

// dialer finds the providers, which have another address after each start.
func dialer(dir string) *http.Transport {
	return &http.Transport{
		MaxIdleConnsPerHost: atOnce,
		DialContext: func(ctx context.Context, network, host string) (net.Conn, error) {
			provider, _, _ := strings.Cut(host, ":")
			address, err := os.ReadFile(addressOf(dir, provider))
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, string(address))
		},
	}
}

// orders returns the stream.
func (j *job) orders() iter.Seq[order] {
	return func(yield func(order) bool) {
		for number := int64(1); number <= j.Orders; number++ {
			if !yield(orderAt(j.Seed, number)) {
				return
			}
		}
	}
}

// pay is the function of the operator. One that is called again for an order goes on where the earlier call was; of one that is
// paid it returns the payment.
func (j *job) pay(ctx context.Context, o order) (p payment, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return p, err
	}
	response, err := j.pays.Do(ctx, keys.Request{User: "job", Key: o.ID, Method: http.MethodPost, Path: "/payments", Body: body})
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(response.Body, &p)
}

// steps bring an order to its end: the provider is chosen and stored, then asked, and what it says is stored.
func (j *job) steps(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
	var o order
	if err := json.Unmarshal(run.Body, &o); err != nil {
		return exactlyonce.Response{}, err
	}
	paid, err := j.chargeOnce(ctx, run, o)
	if refused, ok := errors.AsType[*keys.RefusedError](err); ok {
		paid, err = payment{}, nil
		slog.Debug("declined by all", "order", o.ID, "refusals", refused.Refusals)
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

// chargeOnce asks one provider until it answers, whatever happens in between, and the other one only if that declines.
func (j *job) chargeOnce(ctx context.Context, run *keys.Run, o order) (payment, error) {
	if j.Break == withoutSticky {
		return j.chargeAnywhere(ctx, run, o)
	}
	choose := func(refused []keys.Refusal) (provider string, ok bool) {
		switch len(refused) {
		case 0:
			return o.First, true
		case 1:
			return other(o.First), true
		}
		return "", false
	}
	return keys.CallProvider(ctx, run, "charge", choose, func(ctx context.Context, provider, _ string) (payment, error) {
		return j.charge(ctx, provider, o)
	})
}

// chargeAnywhere shows what the stored choice is for: it asks the other provider after any error.
func (j *job) chargeAnywhere(ctx context.Context, run *keys.Run, o order) (payment, error) {
	p, err := keys.Call(ctx, run, "charge", func(ctx context.Context, _ string) (payment, error) {
		p, err := j.charge(ctx, o.First, o)
		if err != nil {
			p, err = j.charge(ctx, other(o.First), o)
		}
		return p, err
	})
	if errors.Is(err, keys.ErrRefused) {
		return payment{}, &keys.RefusedError{}
	}
	return p, err
}

func other(provider string) string {
	if provider == north {
		return south
	}
	return north
}

// charge sends one request. Its id is that of the order: the number in the stream, under the identity of the job.
func (j *job) charge(ctx context.Context, provider string, o order) (payment, error) {
	body, err := json.Marshal(chargeRequest{Order: o.ID, Number: o.Number, Cents: o.Cents})
	if err != nil {
		return payment{}, err
	}
	ctx = predicates.WithTracked(ctx) // it may be repeated, also if it was lost on the way
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+provider+"/charges", bytes.NewReader(body))
	if err != nil {
		return payment{}, err
	}
	if j.Break != withoutTracking {
		id := exactlyonce.ID{Client: j.client, Sequence: o.Number, Attempt: asyncop.AttemptFromContext(ctx)}
		req.Header.Set(exactlyonce.Header, id.String())
	}
	j.progress.calls.Add(1)
	resp, err := j.http.Do(req)
	if err != nil {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			j.progress.inDoubt.Add(1)
		}
		return payment{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if resp.StatusCode == http.StatusPaymentRequired {
		return payment{}, fmt.Errorf("%w: card declined", keys.ErrRefused)
	}
	if err := httpretry.CheckResponse(resp); err != nil {
		return payment{}, err
	}
	var answer chargeResponse
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return payment{}, err
	}
	return payment{Provider: provider, Charge: answer.Charge}, nil
}

// sample is a line of the job for its supervisor.
type sample struct {
	Done     int64 `json:"done"`
	Calls    int64 `json:"calls"`
	InDoubt  int64 `json:"inDoubt"`
	Declined int64 `json:"declined"`
}

// report prints samples until it is stopped; the last one then.
func (j *job) report() (stop func()) {
	p := &j.progress
	show := func() {
		line, err := json.Marshal(sample{p.done.Load(), p.calls.Load(), p.inDoubt.Load(), p.declined.Load()})
		if err == nil {
			fmt.Println(string(line))
		}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-time.After(20 * time.Millisecond):
				show()
			case <-done:
				show()
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// readPayments returns what the job knows of the orders.
func readPayments(ctx context.Context, dir string) (map[string]booked, error) {
	db, err := sqlite.Open(ctx, filepath.Join(dir, "job.db"))
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	rows, err := db.Reader().QueryContext(ctx, "SELECT order_id, provider, charge, cents FROM payments")
	if err != nil {
		return nil, err
	}
	paid := map[string]booked{}
	for rows.Next() {
		var id string
		var b booked
		if err := rows.Scan(&id, &b.Provider, &b.Charge, &b.Cents); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		paid[id] = b
	}
	return paid, errors.Join(rows.Err(), rows.Close())
}
