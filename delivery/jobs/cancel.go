package jobs

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// CancelKey starts a job that removes all messages of a key: from the queue, its layers
// and its dead letters. It returns the job with its id; [Jobs.Run] runs it at once. The
// contexts of calls that run for these messages end within about two seconds, in all
// workers, and their failures and results are not stored (law W5).
//
// Older jobs of the queue run first: pause or cancel a job that takes long.
// [Jobs.Matching] counts the messages beforehand. Messages that are put after the start
// stay. Earlier messages are found even if they move to another of these queues while the
// job runs, with these exceptions, which may stay:
//   - messages that a merge sends back to the queue,
//   - messages of a queue that is not on this engine, such as a topic of Kafka, if they
//     reach their first layer,
//   - messages whose origin ([message.Meta].Put) does not end with a number, or has more
//     than 200 bytes and is stored as a hash ([message.Origin.ID]).
//
// CancelKey lists the messages of the key that are not dead letters before it returns. It
// returns an error if the key is empty, if these messages come from more than 100
// sources, such as queues or partitions, and for an engine that is not a [store.Keeper].
func (j *Jobs) CancelKey(ctx context.Context, queue, key, by, why string) (Job, error) {
	return j.Start(ctx, Spec{Do: store.Purge, Queue: queue, Family: true, Filter: store.Filter{Key: key}, By: by, Why: why})
}

// QueueCount is a number of messages of a queue.
type QueueCount struct {
	Queue    string
	Messages int
}

// Matching counts the messages that a job would affect if it started now, by queue.
// It leaves out queues without such messages. By and Why need not be set. With an error,
// it returns the counts so far.
func (j *Jobs) Matching(ctx context.Context, s Spec) ([]QueueCount, error) {
	queues := []string{s.Queue}
	if s.Family {
		of, err := familyOf(ctx, j.engine, s.Queue)
		if err != nil {
			return nil, err
		}
		queues = of.all()
	}
	var counts []QueueCount
	for _, queue := range queues {
		n, err := j.engine.Count(ctx, queue, s.Filter)
		if err != nil {
			return counts, err
		}
		if n.Messages > 0 {
			counts = append(counts, QueueCount{Queue: queue, Messages: n.Messages})
		}
	}
	return counts, nil
}

type queuePass struct {
	queue        string
	after, until int64 // positions: after is exclusive, until inclusive
	isAgain      bool  // the second pass over the queue
}

// nextPass returns the pass after the pass that a job has ended, or nil if that was the
// last. A job of a family makes two passes over each queue, in the order in which
// messages move. Each ends at the position of the last message when it begins, so the job
// ends even if messages are put faster than it lists them. It finds messages that move
// while it runs:
//   - A message that moves to a later queue does so before the passes over its own queue
//     have ended, so the passes over the later queue include it.
//   - In an outage a message returns to the same queue. The second pass includes it.
func (j *Jobs) nextPass(ctx context.Context, job *Job) (*queuePass, error) {
	isFull := job.Max > 0 && job.Done >= job.Max
	if !job.Family || isFull {
		return nil, nil
	}
	queue := job.queue()
	if !job.Again {
		n, err := j.engine.Count(ctx, queue, job.Filter)
		if err != nil {
			return nil, err
		}
		if n.Last > job.Until {
			return &queuePass{queue: queue, after: job.Until, until: n.Last, isAgain: true}, nil
		}
	}
	of, err := familyOf(ctx, j.engine, job.Queue)
	if err != nil {
		return nil, err
	}
	for _, later := range of.ordered() {
		if storearg.PartOf(later).Compare(storearg.PartOf(queue)) > 0 {
			n, err := j.engine.Count(ctx, later, job.Filter)
			return &queuePass{queue: later, until: n.Last}, err
		}
	}
	return nil, nil
}

// Limits of a queue's record of cancelled keys, which a transaction reads and writes.
const (
	keptKeys      = 16
	keptKeysBytes = 4096
)

// cancelledKeys is the record of the last cancelled keys of a queue, whose calls workers
// end. There is one record of bounded size for each queue with a cancelled key.
type cancelledKeys struct {
	Keys    []cancelledKey `json:"keys"`              // the oldest first
	Dropped int            `json:"dropped,omitempty"` // highest number that Keys lacks because of the limits
}

type cancelledKey struct {
	Number int    `json:"number"` // later cancellations have higher numbers
	Key    string `json:"key"`    // "" means messages of any key
}

// readCancelled reads the record of a queue. A record that cannot be read counts as a
// cancellation of any key.
func readCancelled(r store.Record) cancelledKeys {
	var c cancelledKeys
	err := json.Unmarshal([]byte(r.Value), &c)
	if err != nil {
		return cancelledKeys{Keys: []cancelledKey{{Number: int(r.Version)}}}
	}
	return c
}

// noteCancelled records that messages of a key were removed. With isShort the record
// lacks keys, so workers look up all of their messages.
func noteCancelled(ctx context.Context, tx store.Tx, queue, key string, isShort bool) error {
	r := store.Record{Kind: kindCancelled, Name: queue}
	var c cancelledKeys
	err := each(ctx, tx, kindCancelled, func(there store.Record) error {
		if there.Name == queue {
			r, c = there, readCancelled(there)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Value, err = c.with(key, isShort)
	if err != nil {
		return fmt.Errorf("jobs: the cancelled keys of queue %q: %w", queue, err)
	}
	tx.Announce()
	return tx.Write(ctx, r)
}

func (c cancelledKeys) with(key string, isShort bool) (string, error) {
	next := cancelledKey{Number: 1, Key: key}
	if n := len(c.Keys); n > 0 {
		next.Number = c.Keys[n-1].Number + 1
		if c.Keys[n-1].Key == key {
			c.Keys = c.Keys[:n-1]
		}
	}
	if isShort {
		c = cancelledKeys{Keys: []cancelledKey{{Number: next.Number}}}
	} else {
		c.Keys = append(c.Keys, next)
	}
	for {
		text, err := json.Marshal(c)
		isTooLong := len(c.Keys) > keptKeys || len(text) > keptKeysBytes && len(c.Keys) > 1
		if err != nil || !isTooLong {
			return string(text), err
		}
		c.Dropped, c.Keys = c.Keys[0].Number, c.Keys[1:]
	}
}

// cancellations passes cancelled keys to a worker, each once. Owned by one goroutine.
type cancellations struct {
	jobs *Jobs
	seen map[string]int // by queue: the highest number; nil before the first notify
}

// notify calls Cancelled for the keys cancelled since the last call. The first call is
// without a key: the worker may have taken messages before.
func (c *cancellations) notify(ctx context.Context) error {
	seen := map[string]int{}
	err := each(ctx, c.jobs.engine, kindCancelled, func(r store.Record) error {
		record := readCancelled(r)
		keys := record.Keys
		if len(keys) == 0 {
			return nil
		}
		last := c.seen[r.Name]
		seen[r.Name] = keys[len(keys)-1].Number
		if c.seen == nil || record.Dropped > last {
			c.jobs.Cancelled(r.Name, "")
			return nil
		}
		for _, k := range keys {
			if k.Number > last {
				c.jobs.Cancelled(r.Name, k.Key)
			}
		}
		return nil
	})
	if err == nil {
		c.seen = seen
	}
	return err
}
