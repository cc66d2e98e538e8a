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

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
)

// location says where a worker finds the engine.
type location struct {
	Dir  string
	URL  string // "": SQLite, in Dir
	Name string // begins the names of queues and topics
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
	// keeps returns what the console looks into.
	keeps() store.Engine
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
	at := location{Dir: dir, URL: c.url(), Name: name}
	switch {
	case c.Engine == onEmbedded:
		return startEmbedded(ctx, at)
	case c.scheme() == onKafka:
		return startKafka(ctx, at)
	}
	return newQueues(ctx, at)
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

// Names of queues.
const (
	ordersQueue   = "orders"
	paymentsQueue = "payments"
)

const (
	later     = 300 * time.Millisecond
	muchLater = time.Second
	jitter    = 0.5

	lease = 2 * time.Second // after it the orders of a worker that was killed go to another one
)

// layers are where orders wait that cannot be paid now; Kafka has a topic for each.
var layers = []delivery.Layer{{Delay: later, Jitter: jitter}, {Delay: muchLater, Jitter: jitter}}

var (
	paymentsCodec = codec.JSON[bank.Payment]()

	quiet = slog.New(slog.DiscardHandler) // what is killed all the time has much to say
)

// ordersOn returns the queue of orders on an engine, with its layers and dead letters.
func ordersOn(e delivery.Engine, at location) *delivery.Queue[bank.Order] {
	opts := []delivery.QueueOption{delivery.WithLayers(layers...), delivery.WithLogger(quiet)}
	if _, leases := e.(store.Store); leases {
		opts = append(opts, delivery.WithLease(lease))
	}
	return delivery.NewQueue[bank.Order](e, at.queue(ordersQueue), opts...)
}

// stored is the part of an engine that has its layers and dead letters in a store.
type stored struct {
	queues store.Inspector
	orders *delivery.Queue[bank.Order]
}

func (s stored) keeps() store.Engine { return s.queues }

// look counts the orders. They go from queue to queue, and are put before they are removed.
func (s stored) look(ctx context.Context) (c counts, err error) {
	n, err := s.orders.Counts(ctx)
	return counts{open: int64(n.Waiting + n.Retrying), dead: int64(n.Dead)}, err
}

// merge sends all dead letters back: what failed has one cause, and that is repaired.
func (s stored) merge(ctx context.Context) (int, error) {
	j, err := jobs.New(s.queues, jobs.Config{})
	if err != nil {
		return 0, err
	}
	job, err := j.Start(ctx, jobs.Spec{
		Do: jobs.Merge, Queue: s.orders.DeadLetters(), To: s.orders.Name(), By: "supervisor", Why: "the cause is repaired",
	})
	if err != nil {
		return 0, err
	}
	job, err = j.Run(ctx, job.ID, nil)
	return job.Done, err
}

// putAll puts orders into a sink. They have the ids by which engines and workers know them.
func putAll(ctx context.Context, sink delivery.Sink[bank.Order], orders []bank.Order) error {
	messages := make([]delivery.Message[bank.Order], len(orders))
	for i, o := range orders {
		messages[i] = delivery.New(o, &delivery.Meta{ID: o.ID, Key: o.ID}, nil)
	}
	return sink.PutAll(ctx, messages)
}

// receipts reads the payments.
func receipts(ctx context.Context, list func(context.Context, store.Filter, store.Page) ([]store.Entry, error)) (payments []bank.Payment, err error) {
	for page := (store.Page{Max: 500}); ; {
		entries, err := list(ctx, store.Filter{}, page)
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

// patience is how long the supervisor asks an engine again that has no answer, such as while one of its servers is started again.
const patience = 30 * time.Second

// patiently calls f until it succeeds.
func patiently[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	for begun := time.Now(); ; {
		v, err := f(ctx)
		if err == nil || ctx.Err() != nil || time.Since(begun) >= patience {
			return v, err
		}
		time.Sleep(200 * time.Millisecond)
	}
}
