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
	"github.com/weirflow/weir/examples/internal/bank"
)

// ends are what a worker needs of an engine for a provider: where orders come from, new ones and those that come back, where those go
// that cannot be paid now, those that the other provider is to be asked for, and where payments go.
//
//	queues.go    a file (SQLite), a database (PostgreSQL), or servers (JetStream), which may be within the supervisor (embedded.go)
//	kafka.go     Kafka
type ends struct {
	orders   delivery.Source[bank.Order]
	failed   func(context.Context, asyncop.Failure[bank.Order]) error
	others   delivery.Sink[bank.Order]
	payments delivery.Sink[bank.Payment]
	close    func()
}

// location says where a worker finds the engine.
type location struct {
	Engine  string // embedded is found as jetstream
	Dir     string // of SQLite
	URL     string // of JetStream, or of PostgreSQL
	Brokers []string
	Name    string // begins the names of queues, streams and topics
}

// queue returns the name of a queue.
func (l location) queue(name string) string { return l.Name + "-" + name }

// owns reports whether a queue is of this run.
func (l location) owns(queue string) bool { return strings.HasPrefix(queue, l.Name+"-") }

// engine is what the supervisor needs.
type engine interface {
	location() location
	// put makes the orders wait.
	put(ctx context.Context, orders []bank.Order) error
	// look counts.
	look(ctx context.Context) (counts, error)
	// dead returns the dead letters.
	dead(ctx context.Context) ([]bank.Order, error)
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
	case onKafka:
		return startKafka(ctx, c.Brokers, name)
	}
	return newQueues(ctx, location{Engine: c.Engine, Dir: dir, URL: c.URL, Name: name})
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
	muchLater = 500 * time.Millisecond
	jitter    = 0.5

	lease = 2 * time.Second // after it the orders of a worker that was killed go to another one
)

// layers are where orders wait that cannot be paid now; Kafka has a topic for each.
var layers = []struct {
	name string
	delivery.Layer
}{
	{"later", delivery.Layer{Delay: later, Jitter: jitter}},
	{"much-later", delivery.Layer{Delay: muchLater, Jitter: jitter}},
}

var (
	ordersCodec   = codec.JSON[bank.Order]()
	paymentsCodec = codec.JSON[bank.Payment]()

	quiet = slog.New(slog.DiscardHandler) // what is killed all the time has much to say
)

// ordersOn returns the queue of orders for a provider on an engine, with its layers and dead letters.
func ordersOn(e delivery.Engine, at location, provider string) *delivery.Queue[bank.Order] {
	return delivery.NewQueue[bank.Order](e, at.queue(ordersQueue)+"-"+provider, delivery.WithLayers(layers[0].Layer, layers[1].Layer),
		delivery.WithLease(lease), delivery.WithLogger(quiet))
}

// putFirst puts orders into the sinks of the providers that are to be asked first.
func putFirst(ctx context.Context, sinks map[string]delivery.Sink[bank.Order], orders []bank.Order) error {
	first := map[string][]bank.Order{}
	for _, o := range orders {
		first[o.First] = append(first[o.First], o)
	}
	for provider, of := range first {
		if err := putAll(ctx, sinks[provider], of); err != nil {
			return err
		}
	}
	return nil
}

// putAll puts orders into a sink. They have the ids by which engines and workers know them.
func putAll(ctx context.Context, sink delivery.Sink[bank.Order], orders []bank.Order) error {
	messages := make([]delivery.Message[bank.Order], len(orders))
	for i, o := range orders {
		messages[i] = delivery.New(o, &delivery.Meta{ID: o.ID, Key: o.ID}, nil)
	}
	return sink.PutAll(ctx, messages)
}
