package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// KeyOrder is an order of people to the workers of a queue (delivery.Run), about the
// messages of a key, until the next order for the key.
type KeyOrder struct {
	Queue string    `json:"queue"`
	Key   string    `json:"key"`
	Event string    `json:"event"`          // hold, resume
	Held  bool      `json:"held,omitempty"` // workers take no messages of the key
	By    string    `json:"by"`             // author of the order
	Why   string    `json:"why"`
	At    time.Time `json:"at"` // by the engine's clock

	name    string // of the record
	version int64
}

// maxHeldKeys is the most keys held on an engine: every worker reads all of the orders
// once a second.
const maxHeldKeys = 1000

// HoldKey makes the workers of a queue take no messages of a key, such as a customer,
// until [Jobs.ResumeKey]: neither from the queue nor from its layers. The messages stay
// where they are, without visits, at a cost that does not depend on their number. Workers
// obey in the same way, and as soon, as they obey [Jobs.PauseQueue]. Messages can be put
// meanwhile, jobs run, and deadlines pass. Messages without a key, if other programs put
// some, may wait behind the messages of the key: see delivery.WithFairByKey.
//
// Only workers whose queue has delivery.WithFairByKey can leave out a key: they report
// [Worker].HoldsKeys. HoldKey returns an error if a live worker of the queue cannot, or
// runs a version of weir without this order. If such a worker starts later, it takes the
// messages of the key all the same.
//
// HoldKey also returns an error
//   - if the key is empty, or neither messages nor workers belong to the queue,
//   - if the queue is a layer or the dead letters of another queue,
//   - that matches [fs.ErrExist], if the key is held already,
//   - if 1,000 keys are held on the engine,
//   - that matches [errors.ErrUnsupported], on an engine that is not a [store.ByKey],
//     such as JetStream.
func (j *Jobs) HoldKey(ctx context.Context, queue, key, by, why string) (KeyOrder, error) {
	o := KeyOrder{Queue: queue, Key: key, Event: "hold", Held: true, By: by, Why: why}
	err := j.checkKeyOrder(o)
	if err != nil {
		return KeyOrder{}, err
	}
	_, canSkip := j.engine.(store.ByKey)
	if !canSkip {
		return KeyOrder{}, fmt.Errorf("jobs: %w: a %T cannot leave out the messages of a key, since it is not a store.ByKey: "+
			"hold the messages that are there with a job (store.Hold), pause the queue, or use SQLite or PostgreSQL", errors.ErrUnsupported, j.engine)
	}
	names, err := j.engine.Queues(ctx)
	if err != nil {
		return KeyOrder{}, err
	}
	return j.orderKey(ctx, o, func(ctx context.Context, tx store.Tx, held []KeyOrder) error {
		i := slices.IndexFunc(held, o.isSameKey)
		switch {
		case i >= 0:
			return keyHeldError(held[i])
		case len(held) >= maxHeldKeys:
			return fmt.Errorf("jobs: %d keys are held on this engine already, and at most %d can be: resume some of them, or pause the queue", len(held), maxHeldKeys)
		}
		return checkWorkers(ctx, tx, queue, names)
	})
}

// ResumeKey ends a hold: workers take the messages of the key again within two seconds.
// The error matches [fs.ErrNotExist] if the key is not held.
func (j *Jobs) ResumeKey(ctx context.Context, queue, key, by, why string) (KeyOrder, error) {
	o := KeyOrder{Queue: queue, Key: key, Event: "resume", By: by, Why: why}
	err := j.checkKeyOrder(o)
	if err != nil {
		return KeyOrder{}, err
	}
	return j.orderKey(ctx, o, func(_ context.Context, _ store.Tx, held []KeyOrder) error {
		if !slices.ContainsFunc(held, o.isSameKey) {
			return keyNotHeldError(o)
		}
		return nil
	})
}

// HeldKeys returns the keys that people hold, by queue and key. An order that cannot be
// read, because it is damaged or of a later version, has the queue, the key, and a
// reason.
func (j *Jobs) HeldKeys(ctx context.Context) ([]KeyOrder, error) { return heldKeys(ctx, j.engine) }

// orderKey writes or removes the hold of a key, and writes a line of the log, in one
// transaction (law J2). check may refuse the order because of the held keys.
func (j *Jobs) orderKey(ctx context.Context, o KeyOrder, check func(ctx context.Context, tx store.Tx, held []KeyOrder) error) (KeyOrder, error) {
	err := j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		held, err := heldKeys(ctx, tx)
		if err != nil {
			return err
		}
		err = check(ctx, tx, held)
		if err != nil {
			return err
		}
		o.At = tx.Now().UTC()
		r := store.Record{Kind: kindHeld, Name: heldName(o.Queue, o.Key)}
		i := slices.IndexFunc(held, o.isSameKey)
		if i >= 0 {
			r.Name, r.Version = held[i].name, held[i].version
		}
		if o.Held {
			r.Value, err = orderText(o)
			if err != nil {
				return err
			}
		}
		return keepOrder(ctx, tx, r, Line{At: o.At, Event: o.Event, By: o.By, Why: o.Why, Key: &o})
	})
	if err != nil {
		return KeyOrder{}, err
	}
	return o, nil
}

func (j *Jobs) checkKeyOrder(o KeyOrder) error {
	if o.Key == "" {
		return fmt.Errorf("jobs: which key of queue %q? Name one: an empty key stands for messages without a key", o.Queue)
	}
	err := j.checkOrder(o.Event, fmt.Sprintf("key %q of queue %q", o.Key, o.Queue), o.Queue, o.By, o.Why)
	if err != nil {
		return err
	}
	if !utf8.ValidString(o.Key) {
		return fmt.Errorf("jobs: key %q: must be UTF-8", o.Key)
	}
	_, err = message.Meta{Key: o.Key}.ToHeaders()
	if err != nil {
		return fmt.Errorf("jobs: key of queue %q: %w", o.Queue, err)
	}
	return nil
}

// checkWorkers returns an error if a live worker of a queue cannot leave out keys, or if
// neither messages (in the queues names) nor workers belong to the queue.
func checkWorkers(ctx context.Context, tx store.Tx, queue string, names []string) error {
	list, err := workersOf(ctx, tx)
	if err != nil {
		return err
	}
	readers, unable := 0, 0
	for _, w := range list {
		names = append(names, w.Queues...)
		names = append(names, w.Reads)
		if !w.Takes(queue) || tx.Now().Sub(w.Seen).Abs() >= silentFor {
			continue
		}
		readers++
		if !w.HoldsKeys {
			unable++
		}
	}
	isOfQueue := func(name string) bool { return storearg.PartOf(name).Queue == queue }
	switch {
	case !slices.ContainsFunc(names, isOfQueue):
		return fmt.Errorf("jobs: queue %q is unknown: neither messages nor workers belong to it. Check its name", queue)
	case unable > 0:
		return fmt.Errorf("jobs: workers of queue %q cannot leave out the messages of a key (%d of %d): their queue lacks delivery.WithFairByKey, or they run "+
			"an earlier version of weir. Hold the messages of the key that are there with a job (store.Hold), or pause the queue", queue, unable, readers)
	}
	return nil
}

func heldKeys(ctx context.Context, from reader) (list []KeyOrder, err error) {
	err = each(ctx, from, kindHeld, func(r store.Record) error {
		queue, key, isName := readHeldName(r.Name)
		if !isName {
			return nil // of a later version
		}
		var o KeyOrder
		err := json.Unmarshal([]byte(r.Value), &o)
		if err != nil || o.By == "" {
			o = KeyOrder{Why: "the order cannot be read: it is of a later version of weir, or damaged. Resume the key to remove it"}
		}
		o.Queue, o.Key = queue, key
		o.name, o.version = r.Name, r.Version
		o.Event, o.Held = "hold", true
		list = append(list, o)
		return nil
	})
	return list, err
}

// heldName returns the name of a new record that holds a key: two quoted texts, since
// keys may contain NUL, and records may not. Versions of Go escape differently, so an
// existing record is changed by its own name.
func heldName(queue, key string) string { return strconv.Quote(queue) + strconv.Quote(key) }

func readHeldName(name string) (queue, key string, ok bool) {
	quoted, err := strconv.QuotedPrefix(name)
	if err != nil {
		return "", "", false
	}
	queue, queueErr := strconv.Unquote(quoted)
	key, keyErr := strconv.Unquote(name[len(quoted):])
	return queue, key, queueErr == nil && keyErr == nil
}

func (o KeyOrder) isSameKey(other KeyOrder) bool { return o.Queue == other.Queue && o.Key == other.Key }

type keyHeldError KeyOrder

func (o keyHeldError) Error() string {
	if o.By == "" { // the order cannot be read
		return fmt.Sprintf("jobs: key %q of queue %q is held already: %s", o.Key, o.Queue, o.Why)
	}
	return fmt.Sprintf("jobs: key %q of queue %q is held already, by %s since %s: %s", o.Key, o.Queue, o.By, o.At.Format(time.RFC3339), o.Why)
}

func (keyHeldError) Is(target error) bool { return target == fs.ErrExist }

type keyNotHeldError KeyOrder

func (o keyNotHeldError) Error() string {
	return fmt.Sprintf("jobs: key %q of queue %q is not held", o.Key, o.Queue)
}

func (keyNotHeldError) Is(target error) bool { return target == fs.ErrNotExist }
