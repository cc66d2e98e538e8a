package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// QueueOrder is an order of people to the workers of a queue (delivery.Run), until the
// next order for the queue.
type QueueOrder struct {
	Queue  string    `json:"queue"`
	Event  string    `json:"event"`            // pause, resume
	Paused bool      `json:"paused,omitempty"` // workers receive no messages of the queue and its layers
	By     string    `json:"by"`               // author of the order
	Why    string    `json:"why"`
	At     time.Time `json:"at"` // by the engine's clock

	version int64
}

// PauseQueue makes the workers of a queue stop receiving its messages, from its layers as
// well, until [Jobs.ResumeQueue]. Workers release the messages that they have received
// and not begun. They finish the calls that run, with their retries. Workers that start
// later are paused as well. A worker obeys within two seconds if it reaches the engine,
// and then reports [Worker].Paused. If the engine refuses to let it read the orders, a
// worker without a backend tries again after 20 s. Messages can be put meanwhile, and
// jobs run.
//
// The relay of an outbox, and workers that run a version of weir without this order, do
// not obey it: they never report Paused. PauseQueue returns an error if the name is the
// name of a layer or of the dead letters of another queue, and on an engine that is not a
// [store.Keeper].
func (j *Jobs) PauseQueue(ctx context.Context, queue, by, why string) (QueueOrder, error) {
	return j.orderQueue(ctx, QueueOrder{Queue: queue, Event: "pause", Paused: true, By: by, Why: why})
}

// ResumeQueue ends a pause: workers receive messages again within two seconds. The error
// matches [fs.ErrNotExist] if the queue is not paused.
func (j *Jobs) ResumeQueue(ctx context.Context, queue, by, why string) (QueueOrder, error) {
	return j.orderQueue(ctx, QueueOrder{Queue: queue, Event: "resume", By: by, Why: why})
}

// orderQueue writes or removes the pause of a queue, and writes a line of the log, in one
// transaction (law J2).
func (j *Jobs) orderQueue(ctx context.Context, o QueueOrder) (QueueOrder, error) {
	err := j.checkOrder(o.Event, fmt.Sprintf("queue %q", o.Queue), o.Queue, o.By, o.Why)
	if err != nil {
		return QueueOrder{}, err
	}
	err = j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		there, isPaused, err := pauseOf(ctx, tx, o.Queue)
		if err != nil {
			return err
		}
		if !o.Paused && !isPaused {
			return notPausedError(o.Queue)
		}
		o.At = tx.Now().UTC()
		r := store.Record{Kind: kindPaused, Name: o.Queue, Version: there.version}
		if o.Paused {
			r.Value, err = orderText(o)
			if err != nil {
				return err
			}
		}
		return keepOrder(ctx, tx, r, Line{At: o.At, Event: o.Event, By: o.By, Why: o.Why, Queue: &o})
	})
	if err != nil {
		return QueueOrder{}, err
	}
	return o, nil
}

// checkOrder checks the common parts of orders for queues and keys. target names the
// queue or key for people.
func (j *Jobs) checkOrder(event, target, queue, by, why string) error {
	_, isLocal := j.engine.(*local)
	switch {
	case isLocal:
		return errors.New("jobs: this engine does not keep orders for workers: it is not a store.Keeper. Use SQLite, PostgreSQL or JetStream")
	case by == "" || why == "":
		return fmt.Errorf("jobs: who wants to %s %s, and why? Both are required", event, target)
	case !utf8.ValidString(by) || !utf8.ValidString(why):
		return fmt.Errorf("jobs: by %q, why %q: both must be UTF-8", by, why)
	case storearg.PartOf(queue).Queue != queue:
		return fmt.Errorf("jobs: queue %q belongs to queue %q: name that queue, whose layers are included", queue, storearg.PartOf(queue).Queue)
	}
	return storearg.Queue(queue)
}

func orderText(order any) (string, error) {
	text, err := json.Marshal(order)
	if err != nil {
		return "", fmt.Errorf("jobs: an order to workers: %w", err)
	}
	return string(text), nil
}

// keepOrder writes the record of an order, or removes it if its value is empty, announces
// the change, and appends a line to the log.
func keepOrder(ctx context.Context, tx store.Tx, r store.Record, l Line) error {
	tx.Announce()
	err := tx.Write(ctx, r)
	if err != nil {
		return err
	}
	return appendLine(ctx, tx, l)
}

// PausedQueues returns the queues that people have paused. A record that cannot be read,
// because it is damaged or of a later version, counts as a pause: it has only a name, and
// a reason.
func (j *Jobs) PausedQueues(ctx context.Context) ([]QueueOrder, error) {
	return pauses(ctx, j.engine)
}

func pauses(ctx context.Context, from reader) (list []QueueOrder, err error) {
	err = each(ctx, from, kindPaused, func(r store.Record) error {
		var o QueueOrder
		err := json.Unmarshal([]byte(r.Value), &o)
		if err != nil {
			o = QueueOrder{Why: "the order cannot be read: it is of a later version of weir, or damaged. Resume the queue to remove it"}
		}
		o.Queue, o.version = r.Name, r.Version
		o.Event, o.Paused = "pause", true
		list = append(list, o)
		return nil
	})
	return list, err
}

func pauseOf(ctx context.Context, from reader, queue string) (o QueueOrder, isPaused bool, err error) {
	list, err := pauses(ctx, from)
	for _, o := range list {
		if o.Queue == queue {
			return o, true, err
		}
	}
	return QueueOrder{}, false, err
}

type notPausedError string

func (queue notPausedError) Error() string {
	return fmt.Sprintf("jobs: queue %q is not paused", string(queue))
}

func (notPausedError) Is(target error) bool { return target == fs.ErrNotExist }
