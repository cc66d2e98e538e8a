package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
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
	err = orders.Put(ctx, order{"17"},
		delivery.ID("17"),             // has no effect while a message with this id is in the queue
		delivery.Key("customer-5"),    // for delivery.KeepKeyOrder
		delivery.After(24*time.Hour),  // not before tomorrow
		delivery.Deadline(lastMoment)) // not later: then it is a dead letter, "expired"
	check(err)
	counts, err := orders.Counts(ctx)
	fmt.Println(counts.Waiting, err)
	// Output:
	// 1 <nil>
}
