package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqlitestore"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// workOn sells two tickets from a queue. The second one is sold at its second visit.
func workOn(ctx context.Context, file string) error {
	db, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		return err // it makes the tables, and can be called at each start
	}
	queues := sqlitestore.New(db)
	defer queues.Close()

	sales := store.NewSink(queues, "sales", codec.JSON[sale]())
	if err := sales.Put(ctx, []delivery.Message[sale]{
		delivery.New(sale{"sale-1", 100}, &delivery.Meta{ID: "sale-1"}, nil),
		delivery.New(sale{"sale-2", 200}, &delivery.Meta{ID: "sale-2"}, nil),
	}); err != nil {
		return err // after nil the messages are on disk
	}

	l, err := ladder.New(ladder.Config[sale]{
		Store: queues, Codec: codec.JSON[sale](),
		Layers:      []ladder.Layer{{Queue: "sales later", Delay: 20 * time.Millisecond}},
		DeadLetters: "dead",
	})
	if err != nil {
		return err
	}
	source := l.Source(store.NewSource(queues, "sales", "dead", codec.JSON[sale]()))

	sell := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		meta, _ := delivery.MetaFromContext(ctx)
		if s.ID == "sale-2" && meta.Visit == 1 {
			return "", errBusy
		}
		return receipt(s.ID), nil
	})
	strategy := strategies.PolicyOf(strategies.FixedDelay[receipt](2, time.Millisecond).
		RetryIfException(predicates.HasException)).
		Idempotent() // a sale may be sent twice: the bank knows its id
	op := asyncop.UnorderedWaitWithRetry(sell, 10*time.Second, 100, strategy,
		asyncop.WithFailureSink(l.Take))
	left := 2
	for m, err := range op.Messages(receive(ctx, source)) {
		if err != nil {
			return errors.Join(err, source.Close(ctx))
		}
		fmt.Println("sold", m.Value)
		m.Ack()
		if left--; left == 0 {
			break
		}
	}
	return source.Close(ctx)
}

func Example_queue() {
	dir, err := os.MkdirTemp("", "queue")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fmt.Println(workOn(context.Background(), filepath.Join(dir, "queues.db")))
	// Output:
	// sold sale-1
	// sold sale-2
	// <nil>
}
