// Package outbox brings messages that were staged in a transaction to another system: a job that belongs to a change of the
// database is sent if, and only if, the change was committed.
//
// The job is staged beside the change:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "UPDATE bookings SET paid = true WHERE id = $1", id); err != nil {
//			return err
//		}
//		job, err := store.Encode(codec.JSON[Mail](), mail, delivery.Meta{ID: "receipt/" + id})
//		if err != nil {
//			return err
//		}
//		return s.Stage(ctx, tx, "outbox", job)
//	})
//
// and a relay, which can run in every process, sends it:
//
//	err := outbox.Relay(ctx, s, s.Locks(), outbox.Config{Queue: "outbox", Publish: publish})
//
// Where the consumers use the same database, they need no relay: store.NewSource reads the queue.
//
// # Guarantees
//
// A staged message is published at least once, whenever a process is killed; a message of a transaction that was rolled back is
// never published. Messages are published in the order of their positions, one batch after the other; one with a delay not
// before it is due by the clock of the relay. A message is removed after Publish has returned nil, by its id: one of a
// transaction that commits late is not lost, whatever its position. What is published again has the same id.
//
// One relay works at a time, by the lock of the queue's name. If its process dies, another one takes over when the lease has
// ended. One that was stopped for longer than its lease may publish a batch a second time.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/wait"
)

const (
	defaultBatch   = 100
	defaultLease   = 15 * time.Second
	defaultMaxPoll = time.Second
	minPoll        = 10 * time.Millisecond
	maxRetry       = 5 * time.Second
)

// Config says what [Relay] does. Queue and Publish are required.
type Config struct {
	Queue string // of the staged messages; also the name of the lock
	// Publish sends messages. When it returns nil they are durable. After an error all of them are sent again, after a back-off
	// of 10 ms to 5 s.
	Publish func(ctx context.Context, ms []store.Message) error

	Owner   string        // in the lock; the default is the host's name and the process id
	Batch   int           // messages at once; the default is 100
	Lease   time.Duration // of the lock; the default is 15 s
	MaxPoll time.Duration // how long it waits at most before it looks into an empty queue again; the default is 1 s, it begins with 10 ms
	Logger  *slog.Logger  // errors are logged at warn level; the default is slog.Default()
	Clock   clock.Clock   // the default is the machine's
}

func (c *Config) complete() error {
	switch {
	case c.Queue == "":
		return errors.New("outbox: Queue is empty")
	case c.Publish == nil:
		return errors.New("outbox: Publish is nil")
	case c.Batch < 0 || c.Lease < 0 || c.MaxPoll < 0:
		return fmt.Errorf("outbox: Batch %d, Lease %v and MaxPoll %v must not be negative", c.Batch, c.Lease, c.MaxPoll)
	}
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		c.Owner = fmt.Sprintf("%s, process %d", host, os.Getpid())
	}
	if c.Batch == 0 {
		c.Batch = defaultBatch
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.MaxPoll == 0 {
		c.MaxPoll = defaultMaxPoll
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	return nil
}

// Relay publishes the messages of a queue while it has the lock, until ctx ends, and returns the cause of that. Errors of the
// store, the locks and Publish do not end it. Its queue must have no other consumers. Any number of relays may run.
func Relay(ctx context.Context, s store.Inspector, locks lock.Locks, c Config) error {
	if err := c.complete(); err != nil {
		return err
	}
	r := &relay{Config: c, store: s, notified: make(chan struct{}, 1)}
	if n, ok := s.(store.Notifier); ok {
		listening, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { // ends with Relay
			defer close(ended)
			store.Listen(listening, n, c.Queue, c.Clock, r.notify)
		}()
		defer func() {
			stop()
			<-ended
		}()
	}
	wait := minPoll
	for ctx.Err() == nil {
		r.worked = false
		err := lock.Hold(ctx, c.Clock, locks, c.Queue, c.Owner, c.Lease, func(ctx context.Context, _ lock.Grant) error { return r.run(ctx) })
		if ctx.Err() != nil {
			break
		}
		if r.worked {
			wait = minPoll
		}
		c.Logger.Warn("weir: an outbox's relay was interrupted", "queue", c.Queue, "error", err)
		r.sleep(ctx, wait)
		wait = min(2*wait, maxRetry)
	}
	return context.Cause(ctx)
}

type relay struct {
	Config
	store    store.Inspector
	notified chan struct{} // room for one
	worked   bool          // it has published something since it got the lock
}

// run publishes batch after batch, until something fails.
func (r *relay) run(ctx context.Context) error {
	poll := minPoll
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := r.batch(ctx)
		switch {
		case err != nil:
			return err
		case n > 0:
			r.worked = true
			poll = minPoll
		default:
			if poll = min(2*poll, r.MaxPoll); r.idle(ctx, poll) {
				poll = minPoll
			}
		}
	}
}

// batch publishes what stands first in the queue and is due, and removes it.
func (r *relay) batch(ctx context.Context) (int, error) {
	var ms []store.Message
	var ids []string
	// From the beginning each time: a transaction that commits late has a low position.
	for page := (store.Page{Max: r.Batch}); len(ms) < r.Batch; {
		entries, err := r.store.List(ctx, r.Queue, store.Filter{}, page)
		if err != nil {
			return 0, err
		}
		now := r.Clock.Now()
		for _, e := range entries {
			if len(ms) < r.Batch && !e.Meta.Due.After(now) { // law D3
				ms, ids = append(ms, e.Message), append(ids, e.Meta.ID)
			}
			page.After = e.Position
		}
		if len(entries) < page.Max {
			break
		}
	}
	if len(ms) == 0 {
		return 0, nil
	}
	if err := r.publish(ctx, ms); err != nil {
		return 0, err
	}
	// Law D1: what was read, after it was confirmed.
	_, err := r.store.Purge(ctx, r.Queue, store.Filter{IDs: ids})
	return len(ms), err
}

// publish tries until it succeeds or ctx ends.
func (r *relay) publish(ctx context.Context, ms []store.Message) error {
	for wait := minPoll; ; wait = min(2*wait, maxRetry) {
		err := r.Publish(ctx, ms)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		r.Logger.Warn("weir: an outbox's messages could not be published and are tried again", "queue", r.Queue, "messages", len(ms), "after", wait, "error", err)
		r.sleep(ctx, wait)
	}
}

func (r *relay) notify() {
	select {
	case r.notified <- struct{}{}:
	default:
	}
}

// idle waits for a notification, at most for d, and returns whether there was one.
func (r *relay) idle(ctx context.Context, d time.Duration) bool {
	timer := r.Clock.Timer(d)
	defer timer.Stop()
	select {
	case <-r.notified:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (r *relay) sleep(ctx context.Context, d time.Duration) {
	_ = wait.For(ctx, r.Clock, d) // the caller looks at ctx
}
