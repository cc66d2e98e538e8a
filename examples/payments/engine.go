package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deadletters"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
)

// ends are what a worker needs of an engine: where orders come from, new ones and those that come back, where those go that cannot
// be paid now, and where payments go.
//
//	sqlite.go     a file
//	jetstream.go  JetStream: servers, or within the supervisor (embedded.go)
//	kafka.go      Kafka
type ends struct {
	orders   delivery.Source[bank.Order]
	failed   func(context.Context, asyncop.Failure[bank.Order]) error
	payments delivery.Sink[bank.Payment]
	close    func()
}

// location says where a worker finds the engine.
type location struct {
	Engine  string // embedded is found as jetstream
	Dir     string // of SQLite
	URL     string // of JetStream
	Brokers []string
	Name    string // begins the names of streams and topics
}

// open opens the ends in a worker.
func open(ctx context.Context, at location, worker int) (ends, error) {
	switch at.Engine {
	case onJetStream:
		return openJetStream(ctx, at)
	case onKafka:
		return openKafka(at, worker)
	}
	return openSQLite(ctx, at)
}

// engine is what the supervisor needs.
type engine interface {
	location() location
	// put makes the orders wait.
	put(ctx context.Context, orders []bank.Order) error
	// look counts.
	look(ctx context.Context) (counts, error)
	// merge sends all dead letters back.
	merge(ctx context.Context) (int, error)
	// receipts returns the payments.
	receipts(ctx context.Context) ([]bank.Payment, error)
	// close ends it, and removes what it has on a server if the run was temporary.
	close(temporary bool) error
}

// counts are of orders.
type counts struct {
	open int64 // wait, in a layer or not, or are in flight
	dead int64
	paid int64
}

// start starts the engine, or connects to it.
func start(ctx context.Context, c config, dir string) (engine, error) {
	name, err := runName(dir)
	if err != nil {
		return nil, err
	}
	switch c.Engine {
	case onEmbedded:
		return startEmbedded(ctx, dir, name)
	case onJetStream:
		return newJetStream(ctx, location{Engine: onJetStream, URL: c.URL, Name: name})
	case onKafka:
		return startKafka(ctx, c.Brokers, name)
	}
	return newSQLite(ctx, location{Engine: onSQLite, Dir: dir})
}

// runName returns the name of the run in a directory: streams and topics of several runs may be on the same servers.
func runName(dir string) (string, error) {
	file := filepath.Join(dir, "run")
	name, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		name = []byte("payments-" + strings.ToLower(rand.Text()[:8]))
		err = os.WriteFile(file, name, 0o600)
	}
	return string(name), err
}

// Names of queues, streams and topics.
const (
	ordersQueue   = "orders"
	paymentsQueue = "payments"
	deadQueue     = "dead"
)

const (
	later     = 300 * time.Millisecond
	muchLater = time.Second
	jitter    = 0.5

	lease = 2 * time.Second // after it the orders of a worker that was killed go to another one
)

var layers = []ladder.Layer{
	{Queue: "later", Delay: later, Jitter: jitter},
	{Queue: "much-later", Delay: muchLater, Jitter: jitter},
}

var (
	ordersCodec   = codec.JSON[bank.Order]()
	paymentsCodec = codec.JSON[bank.Payment]()

	quiet = slog.New(slog.DiscardHandler) // what is killed all the time has much to say
)

// newLadder is for engines that keep messages in a store: layers and dead letters are queues of it.
func newLadder(s store.Store) (*ladder.Ladder[bank.Order], error) {
	return ladder.New(ladder.Config[bank.Order]{
		Store: s, Codec: ordersCodec, Layers: layers, DeadLetters: deadQueue,
		Options: []store.SourceOption{store.WithLease(lease), store.WithLogger(quiet)},
	})
}

// stored is the part of an engine that has its layers and dead letters in a store.
type stored struct{ queues store.Inspector }

// count counts messages. Orders go from queue to queue, and are put before they are removed: who counts in that order misses none.
func (s stored) count(ctx context.Context, queues ...string) (sum int64, err error) {
	for _, queue := range queues {
		c, err := s.queues.Count(ctx, queue, store.Filter{})
		if err != nil {
			return 0, err
		}
		sum += int64(c.Messages)
	}
	return sum, nil
}

// look counts what is in the store.
func (s stored) look(ctx context.Context) (c counts, err error) {
	var names []string
	for _, l := range layers {
		names = append(names, l.Queue)
	}
	if c.open, err = s.count(ctx, names...); err == nil {
		c.dead, err = s.count(ctx, deadQueue)
	}
	return c, err
}

// merge sends all dead letters back to the first layer: what failed has one cause, and that is repaired.
func (s stored) merge(ctx context.Context) (int, error) {
	merged, err := deadletters.Merge(ctx, s.queues, deadletters.Config{From: deadQueue, To: layers[0].Queue})
	return merged.Merged, err
}

// putAll puts orders into a sink. They have the ids by which engines and workers know them.
func putAll(ctx context.Context, sink delivery.Sink[bank.Order], orders []bank.Order) error {
	messages := make([]delivery.Message[bank.Order], len(orders))
	for i, o := range orders {
		messages[i] = delivery.New(o, &delivery.Meta{ID: o.ID, Key: o.ID}, nil)
	}
	return sink.Put(ctx, messages)
}
