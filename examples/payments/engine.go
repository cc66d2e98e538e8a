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
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/message"
)

type location struct {
	Dir  string
	URL  string // "" means SQLite in Dir
	Name string // prefix of queues and topics
}

func (l location) queue(name string) string { return l.Name + "-" + name }

// owns reports whether a queue belongs to this run.
func (l location) owns(queue string) bool { return strings.HasPrefix(queue, l.Name+"-") }

// engine is the supervisor's view of an engine.
type engine interface {
	location() location
	put(ctx context.Context, orders []bank.Order) error
	// keeps returns the engine for the console.
	keeps() store.Engine
	look(ctx context.Context) (counts, error)
	dead(ctx context.Context) ([]bank.Order, error)
	// receipts returns the payments.
	receipts(ctx context.Context) ([]bank.Payment, error)
	// close closes the engine, and removes a temporary run's data from a server.
	close(temporary bool) error
}

type counts struct {
	open int64 // waiting, in a retry layer, or in flight
	dead int64
	paid int64
}

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

// runName returns the name of the run in a directory: runs may share servers.
func runName(dir string) (string, error) {
	file := filepath.Join(dir, "run")
	name, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		name = []byte("payments-" + strings.ToLower(rand.Text()[:8]))
		err = os.WriteFile(file, name, 0o600)
	}
	return string(name), err
}

// Base names of queues.
const (
	ordersQueue   = "orders"
	paymentsQueue = "payments"
)

const (
	jitter = 0.5

	lease = 2 * time.Second // then other workers get a killed worker's orders
)

// layers are the layers for orders after a failed visit: four, because on a busy machine
// a visit may time out even while the provider answers.
var layers = []delivery.Layer{
	{Delay: 300 * time.Millisecond, Jitter: jitter},
	{Delay: 500 * time.Millisecond, Jitter: jitter},
	{Delay: 2 * time.Second, Jitter: jitter},
	{Delay: 4 * time.Second, Jitter: jitter},
}

var (
	ordersCodec   = codec.JSON[bank.Order]()
	paymentsCodec = codec.JSON[bank.Payment]()

	quiet = slog.New(slog.DiscardHandler) // killed processes are noisy
)

type queues struct {
	orders   map[string]*delivery.Queue[bank.Order] // by provider
	payments *delivery.Queue[bank.Payment]
}

func queuesOn(e store.Engine, at location) queues {
	q := queues{map[string]*delivery.Queue[bank.Order]{}, delivery.NewQueue[bank.Payment](e, at.queue(paymentsQueue))}
	for _, provider := range bank.Providers {
		q.orders[provider] = ordersOn(e, at, provider)
	}
	return q
}

// put puts each order into the queue of the provider to try first.
func (q queues) put(ctx context.Context, orders []bank.Order) error {
	first := map[string][]bank.Order{}
	for _, o := range orders {
		first[o.First] = append(first[o.First], o)
	}
	for provider, of := range first {
		if err := putAll(ctx, q.orders[provider], of); err != nil {
			return err
		}
	}
	return nil
}

func ordersOn(e store.Engine, at location, provider string) *delivery.Queue[bank.Order] {
	opts := []delivery.QueueOption{delivery.WithLayers(layers...), delivery.WithLogger(quiet)}
	if _, leases := e.(store.Store); leases {
		opts = append(opts, delivery.WithLease(lease))
	}
	return delivery.NewQueue[bank.Order](e, at.queue(ordersQueue+"-"+provider), opts...)
}

// putAll puts orders into a sink. Engines and workers recognise them by their ids.
func putAll(ctx context.Context, sink delivery.Sink[bank.Order], orders []bank.Order) error {
	messages := make([]message.Message[bank.Order], len(orders))
	for i, o := range orders {
		messages[i] = message.New(o, &message.Meta{ID: o.ID, Key: o.ID}, nil)
	}
	return sink.PutAll(ctx, messages)
}

func listAll[T any](ctx context.Context, list func(context.Context, store.Filter, store.Page) ([]store.Entry, error), c codec.Codec[T]) (all []T, err error) {
	for page := (store.Page{Max: 500}); ; {
		entries, err := list(ctx, store.Filter{}, page)
		if err != nil || len(entries) == 0 {
			return all, err
		}
		for _, entry := range entries {
			v, err := c.Decode(entry.Payload)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		page.After = entries[len(entries)-1].Position
	}
}

// patience bounds how long the supervisor repeats a request to an engine that does not
// answer, for example during a restart.
const patience = 30 * time.Second

// patiently repeats f until it succeeds, ctx ends, or patience has passed.
func patiently[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	for begun := time.Now(); ; {
		v, err := f(ctx)
		if err == nil || ctx.Err() != nil || time.Since(begun) >= patience {
			return v, err
		}
		time.Sleep(200 * time.Millisecond)
	}
}
