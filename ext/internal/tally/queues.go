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

// How queues are counted: beside the scrapes, since it may read a queue from end to end,
// and for a twentieth of the time at most.
const (
	countLimit = 10 * time.Second       // longest count
	countShare = 20                     // pause between two counts, as a multiple of the time of the last one
	countQuick = 10 * time.Millisecond  // a count that is not longer is made at each scrape
	countAwait = 100 * time.Millisecond // how long a scrape waits for a count
)

// Counts counts queues and tables. Safe for concurrent use.
type Counts[T any] struct {
	count func(ctx context.Context, name string) (T, error)
	clock clock.Clock

	mu sync.Mutex
	of map[string]*count[T] // by name
}

// Last is the last count of a queue or table. One that fails leaves the numbers as they
// were.
type Last[T any] struct {
	Counts   T
	At       time.Time // of the numbers; zero before the first count
	Err      error     // of the last count
	Failures int       // counts that failed
}

// count has the last result of a queue, and the count in progress.
type count[T any] struct {
	Last[T]
	again   time.Time     // earliest time of the next one
	running chan struct{} // closed at its end; nil if no count is in progress
}

// NewCounts returns a Counts that calls f to count. Calls of f end with their contexts.
func NewCounts[T any](c clock.Clock, f func(ctx context.Context, name string) (T, error)) *Counts[T] {
	return &Counts[T]{count: f, clock: c, of: map[string]*count[T]{}}
}

// NewQueues returns what counts queues of a store. Of the reasons the first maxReasons by
// name are distinguished.
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

// Count returns the last count, which is a new one if that takes no longer than a tenth
// of a second.
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

// CheckQueues returns the error for names of queues that make no sense.
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
