package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/deadletters"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqlitestore"
)

// Orders that cannot be paid now wait in the layers, and in the end among the dead letters, in queues.db.
const deadQueue = "dead"

var layers = []ladder.Layer{
	{Queue: "later", Delay: 300 * time.Millisecond, Jitter: 0.5},
	{Queue: "much later", Delay: time.Second, Jitter: 0.5},
}

// openQueues opens the queues; close is to be called at the end.
func openQueues(ctx context.Context, dir string) (s *sqlitestore.Store, closeAll func(), err error) {
	db, err := sqlite.Open(ctx, filepath.Join(dir, "queues.db"))
	if err != nil {
		return nil, nil, err
	}
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	s = sqlitestore.New(db)
	return s, func() {
		_ = s.Close() // all that counts is committed
		_ = db.Close()
	}, nil
}

func newLadder(s store.Store) (*ladder.Ladder[order], error) {
	return ladder.New(ladder.Config[order]{
		Store: s, Codec: codec.JSON[order](), Layers: layers, DeadLetters: deadQueue,
		Options: []store.SourceOption{store.WithLease(2 * time.Second), store.WithLogger(slog.New(slog.DiscardHandler))},
	})
}

// stream is the source of the orders. It ends when the layers are empty, too.
type stream struct {
	*channel.Source[order]
	queues store.Inspector
}

func newStream(j *job, queues store.Inspector) *stream {
	orders := make(chan order)
	go func() { // ends with the process
		for o := range j.orders() {
			orders <- o
		}
		close(orders)
	}()
	return &stream{channel.NewSource(orders, func(o order) *delivery.Meta { return &delivery.Meta{ID: o.ID, Key: o.ID} }), queues}
}

// Receive implements delivery.Source.
func (s *stream) Receive(ctx context.Context, n int) ([]delivery.Message[order], error) {
	ms, err := s.Source.Receive(ctx, n)
	for err == io.EOF { //nolint:errorlint // as sources return it
		waiting := 0
		for _, l := range layers {
			c, countErr := s.queues.Count(ctx, l.Queue, store.Filter{})
			if countErr != nil {
				return nil, countErr
			}
			waiting += c.Messages
		}
		if waiting == 0 {
			return nil, io.EOF
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return ms, err
}

// counter is the sink: the payments are in the database already.
type counter struct {
	progress *progress
	mu       sync.Mutex
	seen     map[string]bool // an order may come from the stream and from the dead letters
}

// Put implements delivery.Sink.
func (c *counter) Put(_ context.Context, messages []delivery.Message[payment]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range messages {
		if id := m.Meta().ID; !c.seen[id] {
			c.seen[id] = true
			if m.Value.Provider == "" {
				c.progress.declined.Add(1)
			}
			c.progress.done.Add(1)
		}
	}
	return nil
}

// mergeDead sends all dead letters back to the first layer: what failed has one cause, and that is repaired.
func mergeDead(ctx context.Context, dir string) (int, error) {
	s, closeAll, err := openQueues(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer closeAll()
	merged, err := deadletters.Merge(ctx, s, deadletters.Config{From: deadQueue, To: layers[0].Queue})
	return merged.Merged, err
}
