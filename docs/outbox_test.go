package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
)

type mail struct {
	To string `json:"to"`
}

// pay marks a booking as paid and stages its receipt.
func pay(ctx context.Context, engine *sqlite.Engine, receipts *delivery.Queue[mail], id string, fails error) error {
	return engine.DB().Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE bookings SET paid = 1 WHERE id = ?", id); err != nil {
			return err
		}
		if err := sqlite.PutTx(ctx, tx, receipts, mail{To: id}, delivery.ID("receipt/"+id)); err != nil {
			return err
		}
		return fails // an error rolls back both
	})
}

func relay(ctx context.Context, engine *sqlite.Engine, send func(id string)) error {
	return outbox.Relay(ctx, engine, engine.Locks(), outbox.Config{
		Queue: "outbox",
		Publish: func(_ context.Context, ms []store.Message) error {
			for _, m := range ms {
				send(m.Meta.ID) // to a topic, with the id, by which the receiver recognises a duplicate
			}
			return nil // now they are safe there
		},
	})
}

func Example_outbox() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	engine, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close() }()
	_, err = engine.DB().Writer().ExecContext(ctx, "CREATE TABLE bookings (id TEXT PRIMARY KEY, paid INTEGER) STRICT; "+
		"INSERT INTO bookings VALUES ('b-1', 0), ('b-2', 0)")
	if err != nil {
		fmt.Println(err)
		return
	}
	receipts := delivery.NewQueue[mail](engine, "outbox")

	fmt.Println(pay(ctx, engine, receipts, "b-1", nil))
	fmt.Println(pay(ctx, engine, receipts, "b-2", errBusy))
	fmt.Println(relay(ctx, engine, func(id string) {
		fmt.Println("sent", id)
		cancel()
	}))
	// Output:
	// <nil>
	// busy
	// sent receipt/b-1
	// context canceled
}
