package ladder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	pageSize = 500 // entries listed at once
	// How long a message waits before its source looks again for earlier messages of its
	// key.
	shortestTurn = time.Second
	longestTurn  = 30 * time.Second
	// lookEach is the time that each waiting key adds to the wait, so that at most 200
	// messages a second are taken only to be released.
	lookEach = 5 * time.Millisecond
)

// earlier is a store that takes the messages of a key in order over several queues, which
// an earlier version of the program may have left:
//
//	last layer ─▶ … ─▶ first layer ─▶ "<queue>-blocked" ─▶ the queue
//
// The messages of a queue on the left go before the messages of the same key in a queue
// on the right. For example, key K has a message in the first layer: a message of K that
// is taken from the queue is released again, until the layer has no message of K. No
// message changes its queue, so a crash is harmless. The earlier queues only become
// shorter.
type earlier struct {
	store.InOrder
	clock  clock.Clock
	logger *slog.Logger

	mu   sync.Mutex
	keys map[string]map[string]bool // by queue: keys of which it may have messages
}

func newEarlier(s store.InOrder, c clock.Clock, logger *slog.Logger) *earlier {
	return &earlier{InOrder: s, clock: c, logger: logger, keys: map[string]map[string]bool{}}
}

// note sets the earlier queues, and lists the keys of their messages.
func (e *earlier) note(ctx context.Context, queues []string) error {
	all := map[string]map[string]bool{}
	for _, queue := range queues {
		keys, err := e.keysIn(ctx, queue)
		if err != nil {
			return err
		}
		all[queue] = keys
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keys = all
	return nil
}

func (e *earlier) keysIn(ctx context.Context, queue string) (map[string]bool, error) {
	keys := map[string]bool{}
	for page := (store.Page{Max: pageSize}); ; {
		entries, err := e.List(ctx, queue, store.Filter{}, page)
		if err != nil {
			return nil, fmt.Errorf("messages waiting in %q: %w", queue, err)
		}
		if len(entries) == 0 {
			delete(keys, "") // messages without a key do not wait
			return keys, nil
		}
		for i := range entries {
			keys[entries[i].Meta.Key] = true
		}
		page.After = entries[len(entries)-1].Position
	}
}

// before returns the earlier queues that may have messages of a key, and whose messages
// go before the messages of queue.
func (e *earlier) before(queue, key string) (queues []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, keys := range e.keys {
		// Parts are in the order in which messages of the earlier version moved: from the
		// queue to its last layer. A message in a later part is ahead.
		isAhead := storearg.PartOf(other).Compare(storearg.PartOf(queue)) > 0
		if isAhead && keys[key] {
			queues = append(queues, other)
		}
	}
	return queues
}

// TakeInOrder implements [store.InOrder]. While there are earlier queues it takes few
// messages at once: putOff calls the store several times for each message, before the
// leases end.
func (e *earlier) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	e.mu.Lock()
	if len(e.keys) > 0 {
		limit = min(limit, maxBatch)
	}
	e.mu.Unlock()
	return e.InOrder.TakeInOrder(ctx, queue, limit, lease)
}

// putOff releases the taken messages whose keys have messages in earlier queues, and
// returns the others.
func (e *earlier) putOff(ctx context.Context, queue string, taken []store.Leased) (first []store.Leased) {
	var failure error // of the last message that failed
	for i := range taken {
		isFirst, err := e.putOffUnlessFirst(ctx, queue, &taken[i])
		if err != nil && !storearg.IsLost(err) {
			failure = err
		}
		if isFirst {
			first = append(first, taken[i])
		}
	}
	if failure != nil {
		e.logger.Warn("weir: messages wait, because weir cannot find out whether earlier messages of their keys are left", "queue", queue, "error", failure)
	}
	return first
}

// putOffUnlessFirst returns true if a taken message goes before all others of its key.
// Otherwise it releases the message, or removes it if an earlier queue has it as well.
func (e *earlier) putOffUnlessFirst(ctx context.Context, queue string, l *store.Leased) (isFirst bool, err error) {
	var wait time.Duration
	for _, other := range e.before(queue, l.Meta.Key) {
		isCopy, err := e.hasCopy(ctx, other, queue, l)
		if isCopy {
			return false, e.Done(ctx, l.Lease) // the copy is durable (law D1)
		}
		var left time.Duration
		if err == nil {
			left, err = e.findWait(ctx, other, l.Meta.Key)
		}
		if err != nil {
			return false, errors.Join(err, e.Release(ctx, shortestTurn, l.Lease))
		}
		wait = max(wait, left)
	}
	if wait == 0 {
		return true, nil
	}
	return false, e.Release(ctx, wait, l.Lease)
}

// hasCopy reports whether an earlier queue has the message itself: the earlier version
// was killed between the hand-over and the acknowledgement.
func (e *earlier) hasCopy(ctx context.Context, other, queue string, l *store.Leased) (bool, error) {
	put := storearg.OriginOfPut(queue, &l.Meta, l.Position, l.Lease.Entry) // law W5
	entries, err := e.List(ctx, other, store.Filter{IDs: []string{l.Meta.ID}, Key: l.Meta.Key}, store.Page{Max: pageSize})
	return slices.ContainsFunc(entries, func(c store.Entry) bool {
		return c.Meta.Put == put && !leases.IsSetAside(c.Meta.Due, e.clock.Now())
	}), err
}

// findWait returns how long the other messages of a key wait for its messages in an
// earlier queue. If the earlier queue does not have such messages, it returns 0 and
// forgets the key.
func (e *earlier) findWait(ctx context.Context, queue, key string) (time.Duration, error) {
	now := e.clock.Now()
	for page := (store.Page{Max: 1}); ; page.Max = pageSize { // many may have been set aside
		entries, err := e.List(ctx, queue, store.Filter{Key: key}, page)
		if err != nil {
			return 0, err
		}
		if len(entries) == 0 {
			e.mu.Lock()
			delete(e.keys[queue], key)
			e.mu.Unlock()
			return 0, nil
		}
		for i := range entries {
			due := entries[i].Meta.Due
			if !leases.IsSetAside(due, now) {
				untilDue := min(max(due.Sub(now), shortestTurn), longestTurn)
				return max(untilDue, e.lookTime(queue)), nil
			}
		}
		page.After = entries[len(entries)-1].Position
	}
}

// lookTime returns the shortest wait for an earlier queue. It is longer if more keys
// wait.
func (e *earlier) lookTime(queue string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(len(e.keys[queue])) * lookEach
}
