package memory

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.ByKey = (*Engine)(nil)

// TakeByKey implements [store.ByKey].
func (m *Engine) TakeByKey(ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration) (taken []store.Leased, next string, err error) {
	err = m.do(ctx, func() error {
		if err := errors.Join(storearg.Take(queue, limit, lease), storearg.KeyRound(r)); err != nil {
			return err
		}
		q := m.queues[queue]
		if q == nil {
			return nil
		}
		now := m.clock.Now()
		rooms := m.roomsOf(queue, r, now)
		keys := q.dueKeys(r, now)
		keys = slices.DeleteFunc(keys, func(key string) bool { return rooms.of(key) == 0 })
		if len(keys) > limit {
			keys = keys[:limit]
			next = storearg.Next(keys[limit-1])
		}
		each := r.Each
		for _, key := range keys {
			each = min(each, limit/len(keys), rooms.of(key))
		}
		size := 0
		for _, key := range keys {
			of := q.keys[key]
			for n := 0; n < each && size < storearg.MaxBytes && of.due(now); n++ {
				size += len(of.list[0].Payload)
				e := of.list[0]
				taken = append(taken, m.grant(q, queue, e, now.Add(lease)))
				e.isLimited = r.Limit > 0 && key != ""
				q.countLease(e)
			}
		}
		return nil
	})
	return taken, next, err
}

// dueKeys returns the keys of the rest of a round that have due messages, in order.
func (q *memoryQueue) dueKeys(r store.KeyRound, now time.Time) []string {
	after, begun := storearg.After(r)
	except := make(map[string]bool, len(r.Except))
	for _, key := range r.Except {
		except[key] = true
	}
	keys := slices.Sorted(maps.Keys(q.keys))
	return slices.DeleteFunc(keys, func(key string) bool {
		return begun && key <= after || !q.keys[key].due(now) || except[key]
	})
}

// keyRooms counts how many messages of a key may be leased: see [store.KeyRound].Limit.
type keyRooms struct {
	family []*memoryQueue // the queues that share the limit
	limit  int            // 0 means no limit
	now    time.Time
}

func (m *Engine) roomsOf(queue string, r store.KeyRound, now time.Time) keyRooms {
	rooms := keyRooms{limit: r.Limit, now: now}
	if r.Limit == 0 {
		return rooms
	}
	main := storearg.PartOf(queue).Queue
	for name, q := range m.queues {
		part := storearg.PartOf(name)
		if part.Queue == main && part.SharesLimit() {
			rooms.family = append(rooms.family, q)
		}
	}
	return rooms
}

func (r *keyRooms) of(key string) int {
	if r.limit == 0 || key == "" {
		return math.MaxInt
	}
	room := r.limit
	for _, q := range r.family {
		for e := range q.inFlight[key] {
			if e.LeasedUntil.After(r.now) {
				room--
			}
		}
	}
	return max(0, room)
}

// leasedOfKey are the messages of a key with a lease that counts for a limit of the key,
// unless the lease has ended.
type leasedOfKey map[*memoryEntry]struct{}

// setLease sets until when a message is leased; zero ends the lease.
func (q *memoryQueue) setLease(e *memoryEntry, until time.Time) {
	e.LeasedUntil = until
	if until.IsZero() {
		q.uncountLease(e)
	} else {
		q.countLease(e)
	}
}

// countLease adds a message to inFlight if it has a lease that counts for a limit.
func (q *memoryQueue) countLease(e *memoryEntry) {
	if !e.isLimited || e.LeasedUntil.IsZero() {
		return
	}
	of := q.inFlight[e.Meta.Key]
	if of == nil {
		of = leasedOfKey{}
		q.inFlight[e.Meta.Key] = of
	}
	of[e] = struct{}{}
}

func (q *memoryQueue) uncountLease(e *memoryEntry) {
	of := q.inFlight[e.Meta.Key]
	delete(of, e)
	if len(of) == 0 {
		delete(q.inFlight, e.Meta.Key)
	}
}
