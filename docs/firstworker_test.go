package docs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

type order struct{ Number string }

// onPostgres is compiled only: package postgres tests it.
func onPostgres(ctx context.Context, url string) error {
	engine, err := postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	return engine.Close()
}

var _ = onPostgres

func Example_firstWorker() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "worker")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	engine, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"))
	check(err)
	defer func() { _ = engine.Close() }()
	orders := delivery.NewQueue[order](engine, "orders")
	lastMoment := time.Now().Add(48 * time.Hour)
	headers := map[string]string{"Tenant": "north"}
	err = orders.Put(ctx, order{"17"},
		delivery.ID("17"),             // has no effect while a message with this id is in the queue
		delivery.Key("customer-5"),    // for delivery.WithOrdered and WithFairByKey
		delivery.After(24*time.Hour),  // not before tomorrow; delivery.At(t) for a time t
		delivery.Headers(headers),     // travel with it, such as the trace of an HTTP request: see Observing
		delivery.Deadline(lastMoment)) // not later: then it is a dead letter, "expired"
	check(err)
	counts, err := orders.Counts(ctx)
	fmt.Println(counts.Waiting, err)
	// Output:
	// 1 <nil>
}

type (
	resize struct{ Picture string }
	letter struct{ To string }
)

type task struct {
	Resize *resize `json:",omitempty"` // a field for each kind, of which each task has one
	Letter *letter `json:",omitempty"`
}

// unknownKind is the reason of tasks that this program does not know.
var unknownKind = predicates.NewRejection("UNKNOWN_KIND")

func doTask(ctx context.Context, t task) (string, error) {
	switch {
	case t.Resize != nil:
		return doResize(ctx, *t.Resize)
	case t.Letter != nil:
		return doLetter(ctx, *t.Letter)
	}
	return "", predicates.WithReason(errors.New("unknown task"), unknownKind) // a dead letter, until the worker knows its kind
}

func doResize(_ context.Context, r resize) (string, error) { return "resized " + r.Picture, nil }
func doLetter(_ context.Context, l letter) (string, error) { return "wrote to " + l.To, nil }

type priced struct {
	Order order
	Cents int
}

// inARow is an operator that prices orders, and behind it an operator that charges them.
type inARow struct {
	price  *asyncop.AsyncWaitOperator[order, priced]
	charge *asyncop.AsyncWaitOperator[priced, string]
}

func (r inARow) Messages(input iter.Seq2[message.Message[order], error]) iter.Seq2[message.Message[string], error] {
	return r.charge.Messages(r.price.Messages(input))
}

func (r inARow) Stop(ctx context.Context) error {
	return errors.Join(r.price.Stop(ctx), r.charge.Stop(ctx))
}

func TestFirstWorker_SeveralKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()

		tasks, done := delivery.NewQueue[task](engine, "tasks"), &sent{}
		for _, v := range []task{{Resize: &resize{"cat"}}, {Letter: &letter{"ann"}}, {}} {
			require.NoError(t, tasks.Put(ctx, v))
		}
		_, err := delivery.Run(ctx, tasks, asyncop.OrderedWait(asyncop.Blocking(doTask), time.Second, 4,
			asyncop.WithFailureSink(tasks.TakeFailure), asyncop.WithLogger(quiet)), done, delivery.WithLogger(quiet))
		require.NoError(t, err)
		require.Equal(t, []string{"resized cat", "wrote to ann"}, done.receipts)
		counts, err := tasks.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Dead)
	})
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		orders, receipts := delivery.NewQueue[order](engine, "orders"), &sent{}
		require.NoError(t, orders.Put(ctx, order{"1"}))
		require.NoError(t, orders.Put(ctx, order{"2"}))
		price := asyncop.Blocking(func(_ context.Context, o order) (priced, error) { return priced{o, 100}, nil })
		charge := asyncop.Blocking(func(_ context.Context, p priced) (string, error) {
			if p.Order.Number == "2" {
				return "", errBusy
			}
			return fmt.Sprint("charged ", p.Cents), nil
		})

		unpaid := delivery.NewQueue[priced](engine, "unpaid") // for elements on which the second operator gives up
		op := inARow{
			asyncop.OrderedWait(price, 10*time.Second, 100, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet)),
			asyncop.OrderedWait(charge, 10*time.Second, 100, asyncop.WithFailureSink(unpaid.TakeFailure), asyncop.WithLogger(quiet)),
		}
		_, err := delivery.Run(ctx, orders, op, receipts, delivery.WithLogger(quiet))
		require.NoError(t, err)
		require.Equal(t, []string{"charged 100"}, receipts.receipts)
		counts, err := unpaid.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Dead)
	})
}

// receiptsTable is a sink: it stores each receipt under the id of its order. If an order
// is redelivered, its row is written again.
type receiptsTable struct{ db *sqlite.DB }

func (t receiptsTable) PutAll(ctx context.Context, receipts []message.Message[string]) error {
	return t.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		for _, m := range receipts {
			_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO receipts (id, receipt) VALUES (?, ?)", m.Meta().ID, m.Value)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func TestFirstWorker_ResultOfAMessage(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "receipts.db"))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Writer().ExecContext(ctx, "CREATE TABLE receipts (id TEXT PRIMARY KEY, receipt TEXT)")
	require.NoError(t, err)
	orders := delivery.NewQueue[order](memory.Open(), "orders")
	require.NoError(t, orders.Put(ctx, order{"17"}, delivery.ID("order-17")))
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, o order) (string, error) {
		defer stop() // Run finishes the order that it has
		return "receipt of " + o.Number, nil
	}), 10*time.Second, 4, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
	_, err = delivery.Run(ctx, orders, op, receiptsTable{db}, delivery.WithLogger(quiet))
	require.NoError(t, err)
	var receipt string
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT receipt FROM receipts WHERE id = 'order-17'").Scan(&receipt))
	require.Equal(t, "receipt of 17", receipt)
}
