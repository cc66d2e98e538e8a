package tally

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
)

// Queues are counted beside the scrapes, since that may read a queue from end to end, for
// a twentieth of the time at most.
const (
	countLimit = 10 * time.Second       // longest count
	countShare = 20                     // pause between counts, as a multiple of the last one
	countQuick = 10 * time.Millisecond  // a count up to this is made at each scrape
	countAwait = 100 * time.Millisecond // how long a scrape waits for a count
)

// Counts counts queues and tables. Safe for concurrent use.
type Counts[T any] struct {
	count func(ctx context.Context, name string) (T, error)
	clock clock.Clock

	mu sync.Mutex
	of map[string]*count[T]
}

// Last is the last count of a queue or table. A failed count keeps the numbers.
type Last[T any] struct {
	Counts   T
	At       time.Time // of the numbers; zero before the first count
	Err      error
	Failures int
}

type count[T any] struct {
	Last[T]
	again   time.Time     // earliest time of the next count
	running chan struct{} // closed at its end; nil if no count runs
}

// NewCounts returns a Counts that calls f, which must end with its context.
func NewCounts[T any](c clock.Clock, f func(ctx context.Context, name string) (T, error)) *Counts[T] {
	return &Counts[T]{count: f, clock: c, of: map[string]*count[T]{}}
}

// NewQueues counts queues of a store. It distinguishes the first maxReasons reasons by
// name.
func NewQueues(s store.Inspector, c clock.Clock) *Counts[store.Counts] {
	return NewCounts(c, func(ctx context.Context, queue string) (store.Counts, error) {
		c, err := s.Count(ctx, queue, store.Filter{})
		if err != nil {
			return c, fmt.Errorf("queue %q: %w", queue, err)
		}
		names := slices.Sorted(maps.Keys(c.Reasons))
		for _, name := range names[min(maxReasons, len(names)):] {
			c.Reasons[other.Name()] += c.Reasons[name]
			delete(c.Reasons, name)
		}
		return c, nil
	})
}

// Count returns the last count, or a new one that takes at most a tenth of a second.
func (q *Counts[T]) Count(name string) Last[T] {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := q.of[name]
	if last == nil {
		last = &count[T]{}
		q.of[name] = last
	}
	running := last.running
	if running == nil && !q.clock.Now().Before(last.again) {
		running = make(chan struct{})
		last.running = running
		go q.run(name, last) // ends within countLimit, if the store ends with its context
	}
	if running != nil {
		q.mu.Unlock()
		limit := time.NewTimer(countAwait) //nolint:forbidigo // of the scrape, not of the clock that may stand still
		select {
		case <-running:
		case <-limit.C:
		}
		limit.Stop()
		q.mu.Lock()
	}
	return last.Last
}

func (q *Counts[T]) run(name string, to *count[T]) {
	ctx, cancel := context.WithTimeout(context.Background(), countLimit)
	defer cancel()
	begun := q.clock.Now()
	c, err := q.count(ctx, name)
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	to.Err = err
	if err == nil {
		to.Counts, to.At = c, now
	} else {
		to.Failures++
	}
	if took := now.Sub(begun); took > countQuick {
		to.again = now.Add(countShare * took)
	}
	close(to.running)
	to.running = nil
}

// CheckQueues returns an error for invalid names of queues.
func CheckQueues(names []string) error {
	if len(names) == 0 {
		return errors.New("no queue")
	}
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) {
			return fmt.Errorf("queue %q: the name must not be empty, and not be there twice", name)
		}
	}
	return nil
}
