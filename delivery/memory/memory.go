// Package memory is an engine that keeps messages in memory, for tests and for programs
// that may lose them: they end with the process.
package memory

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

// Engine keeps queues in memory. Safe for concurrent use.
type Engine struct {
	*memoryQueues
	closed bool // guarded by mu
}

// memoryQueues is the state that engines share after Reopen.
type memoryQueues struct {
	machine clock.Clock
	mayJump bool // WithClock has set machine
	clock   *wait.Forward
	limit   int

	mu     sync.Mutex
	queues map[string]*memoryQueue
	size   int
	last   int64

	locks    *memoryLocks
	records  map[recordKey]store.Record
	watchers []*func()
	wakers   map[string][]*waker // guarded by mu; by queue
}

var (
	_ store.Keeper = (*Engine)(nil)
	_ store.Waker  = (*Engine)(nil)
)

type memoryQueue struct {
	note     func(at time.Time) // with the time when a message can be taken
	entries  map[int64]*memoryEntry
	ids      map[store.Identity]int64
	ready    readyHeap
	keys     map[string]*readyHeap  // ready, by key
	inFlight map[string]leasedOfKey // by key; leases that count for a limit
	order    map[string]*keyOrder   // in order, by key; nil before the first TakeInOrder
}

type memoryEntry struct {
	store.Entry
	at     time.Time // when it can be taken
	index  [2]int    // in ready, and in its key's heap
	lapses int

	isLimited bool // leased within a limit of its key: see [store.KeyRound].Limit

	inOrder int  // index in its keyOrder
	isHead  bool // is, or was when it left its queue, its key's head: a rollback restores it
	isAside bool // released for good; not in its keyOrder
}

// Open returns an engine without messages.
func Open(opts ...Option) *Engine {
	var set settings
	for _, o := range opts {
		o(&set)
	}
	m := &memoryQueues{machine: cmp.Or(set.clock, clock.New()), mayJump: set.clock != nil, limit: set.limit, queues: map[string]*memoryQueue{}, records: map[recordKey]store.Record{}, wakers: map[string][]*waker{}}
	m.clock = wait.NewForward(m.machine)
	m.locks = newLocks(m.clock)
	return &Engine{memoryQueues: m}
}

// Reopen returns an open engine on the same queues, as a restarted or another
// worker.
func (m *Engine) Reopen() *Engine { return &Engine{memoryQueues: m.memoryQueues} }

// Put implements [store.Store].
func (m *Engine) Put(ctx context.Context, queue string, ms ...store.Message) error {
	return m.do(ctx, func() error {
		if err := storearg.Put(queue, ms...); err != nil {
			return err
		}
		ms, err := stored(ms)
		if err != nil {
			return err
		}
		moves := make([]store.Move, len(ms))
		for i := range ms {
			moves[i] = store.Move{Queue: queue, Message: ms[i]}
		}
		return m.putAll(moves)
	})
}

// putAll puts all messages, or returns an error and leaves the queues unchanged.
func (m *Engine) putAll(moves []store.Move) error {
	if m.limit > 0 && m.size+m.newIn(moves) > m.limit {
		return fmt.Errorf("%w: %d messages, the limit is %d", store.ErrFull, m.size, m.limit)
	}
	for i := range moves {
		m.put(moves[i].Queue, &moves[i].Message)
	}
	return nil
}

// newIn counts the messages that their queues lack.
func (m *Engine) newIn(moves []store.Move) int {
	type target struct {
		queue string
		id    store.Identity
	}
	fresh := map[target]bool{}
	for i := range moves {
		id := moves[i].Message.Identity()
		if !m.has(moves[i].Queue, id) {
			fresh[target{moves[i].Queue, id}] = true
		}
	}
	return len(fresh)
}

// HandOver implements [store.Inspector].
func (m *Engine) HandOver(ctx context.Context, moves ...store.Move) error {
	return m.do(ctx, func() error {
		if err := storearg.Move(moves...); err != nil {
			return err
		}
		gone := storearg.Gone(moves, func(of *store.Move) bool {
			e := m.queues[of.Lease.Queue].entry(of.Lease)
			return e != nil && !storearg.IsReplaced(of, e.Meta.Visit)
		})
		kept := make([]store.Move, 0, len(moves))
		messages := make([]store.Message, 0, len(moves))
		for i := range moves {
			if !slices.Contains(gone, moves[i].Lease) {
				kept, messages = append(kept, moves[i]), append(messages, moves[i].Message)
			}
		}
		messages, err := stored(messages)
		if err != nil {
			return err
		}
		for i := range kept {
			kept[i].Message = messages[i]
		}
		err = m.putAll(kept)
		if err != nil {
			return err
		}
		return storearg.Lost(gone)
	})
}

// stored returns copies of messages as a store on disk would have them.
func stored(ms []store.Message) ([]store.Message, error) {
	copies := make([]store.Message, len(ms))
	for i := range ms {
		b, err := json.Marshal(ms[i].Meta)
		if wrapped, ok := errors.AsType[*json.MarshalerError](err); ok {
			err = wrapped.Err // it names the message
		}
		if err != nil {
			return nil, fmt.Errorf("memory: %w", err)
		}
		copies[i] = ms[i].Clone()
		copies[i].Meta = message.Meta{}
		if err := json.Unmarshal(b, &copies[i].Meta); err != nil {
			return nil, fmt.Errorf("memory: message %q: %w", guard.Shown(ms[i].Meta.ID), err)
		}
	}
	return copies, nil
}

func (m *Engine) has(queue string, id store.Identity) bool {
	q := m.queues[queue]
	if q == nil {
		return false
	}
	_, ok := q.ids[id]
	return ok
}

func (m *Engine) put(queue string, message *store.Message) {
	if m.has(queue, message.Identity()) {
		return
	}
	m.last++
	m.size++
	now := m.clock.Now()
	e := &memoryEntry{Entry: store.Entry{Message: *message, Position: m.last, Arrived: now}, at: now.Add(min(message.Delay, storearg.LongestDelay))}
	e.Meta.Due, e.Delay = e.at, 0
	m.insert(queue, e)
}

func (m *Engine) insert(queue string, e *memoryEntry) {
	q := m.queues[queue]
	if q == nil {
		q = &memoryQueue{
			note:    func(at time.Time) { m.note(queue, at) },
			entries: map[int64]*memoryEntry{}, ids: map[store.Identity]int64{}, keys: map[string]*readyHeap{},
			inFlight: map[string]leasedOfKey{},
		}
		m.queues[queue] = q
	}
	q.entries[e.Position] = e
	q.ids[e.Identity()] = e.Position
	heap.Push(&q.ready, e)
	key := q.keys[e.Meta.Key]
	if key == nil {
		key = &readyHeap{which: 1}
		q.keys[e.Meta.Key] = key
	}
	heap.Push(key, e)
	q.addToOrder(e)
	q.countLease(e)
	q.note(e.at)
}

func (m *Engine) remove(queue string, e *memoryEntry) {
	q := m.queues[queue]
	heap.Remove(&q.ready, e.index[0])
	key := q.keys[e.Meta.Key]
	heap.Remove(key, e.index[1])
	if key.Len() == 0 {
		delete(q.keys, e.Meta.Key)
	}
	q.removeFromOrder(e, m.clock.Now())
	q.uncountLease(e)
	delete(q.entries, e.Position)
	delete(q.ids, e.Identity())
	m.size--
	if len(q.entries) == 0 {
		delete(m.queues, queue)
	}
}

// Take implements [store.Store].
func (m *Engine) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = m.do(ctx, func() error {
		if err := storearg.Take(queue, limit, lease); err != nil {
			return err
		}
		q := m.queues[queue]
		now := m.clock.Now()
		for size := 0; q != nil && len(taken) < limit && size < storearg.MaxBytes && q.ready.due(now); {
			size += len(q.ready.list[0].Payload)
			taken = append(taken, m.grant(q, queue, q.ready.list[0], now.Add(lease)))
		}
		return nil
	})
	return taken, err
}

func (m *Engine) grant(q *memoryQueue, queue string, e *memoryEntry, until time.Time) store.Leased {
	if !e.LeasedUntil.IsZero() { // its lease ended before it was settled or released
		e.lapses++
	}
	e.Fence++
	q.uncountLease(e)
	e.isLimited = false
	q.setLease(e, until)
	q.set(e, until)
	return store.Leased{
		Message: e.Clone(), Position: e.Position, Lapses: e.lapses,
		Lease: store.Lease{Queue: queue, Entry: strconv.FormatInt(e.Position, 10), Fence: e.Fence},
	}
}

func (q *memoryQueue) set(e *memoryEntry, at time.Time) {
	e.at = at
	heap.Fix(&q.ready, e.index[0])
	heap.Fix(q.keys[e.Meta.Key], e.index[1])
	q.note(at)
}

// Extend implements [store.Store].
func (m *Engine) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	return m.settle(ctx, leases, storearg.Extend(d), func(_ int, q *memoryQueue, e *memoryEntry) {
		q.setLease(e, m.clock.Now().Add(d))
		q.set(e, e.LeasedUntil)
	})
}

// Done implements [store.Store].
func (m *Engine) Done(ctx context.Context, leases ...store.Lease) error {
	return m.settle(ctx, leases, nil, func(i int, _ *memoryQueue, e *memoryEntry) { m.remove(leases[i].Queue, e) })
}

// Release implements [store.Store].
func (m *Engine) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	return m.settle(ctx, leases, storearg.Release(delay), func(_ int, q *memoryQueue, e *memoryEntry) {
		q.setLease(e, time.Time{})
		e.Meta.Due = m.clock.Now().Add(delay)
		q.set(e, e.Meta.Due)
		if delay >= storearg.ForGood {
			q.setAside(e, m.clock.Now())
		}
	})
}

// Move implements [store.Inspector].
func (m *Engine) Move(ctx context.Context, moves ...store.Move) error {
	leases, messages := make([]store.Lease, len(moves)), make([]store.Message, len(moves))
	for i := range moves {
		leases[i], messages[i] = moves[i].Lease, moves[i].Message
	}
	messages, err := stored(messages)
	invalid := errors.Join(storearg.Move(moves...), err)
	return m.settle(ctx, leases, invalid, func(i int, _ *memoryQueue, e *memoryEntry) {
		m.remove(leases[i].Queue, e)
		m.put(moves[i].Queue, &messages[i])
	})
}

// Amend implements [store.Store].
func (m *Engine) Amend(ctx context.Context, lease store.Lease, a store.Amendment) error {
	return m.settle(ctx, []store.Lease{lease}, storearg.Amend(a), func(_ int, q *memoryQueue, e *memoryEntry) {
		if a.Provider != nil {
			e.Meta.Provider = *a.Provider
		}
		if a.Delay == 0 {
			return
		}
		e.Meta.Due = m.clock.Now().Add(min(a.Delay, storearg.LongestDelay))
		if e.LeasedUntil.Before(e.Meta.Due) { // the lease lasts at least until the message is due
			q.setLease(e, e.Meta.Due)
			q.set(e, e.LeasedUntil)
		}
	})
}

// settle calls f for each lease that is not lost. invalid is the error of the call's
// arguments, or nil.
func (m *Engine) settle(ctx context.Context, leases []store.Lease, invalid error, f func(i int, q *memoryQueue, e *memoryEntry)) error {
	return m.do(ctx, func() error {
		if invalid != nil {
			return invalid
		}
		return m.settleAll(leases, f)
	})
}

// settleAll calls f for each lease that is not lost. Called with mu held.
func (m *Engine) settleAll(leases []store.Lease, f func(i int, q *memoryQueue, e *memoryEntry)) error {
	var lost []store.Lease
	for i, l := range leases {
		q := m.queues[l.Queue]
		e := q.leased(l)
		if e == nil {
			lost = append(lost, l)
			continue
		}
		f(i, q, e)
	}
	return storearg.Lost(lost)
}

func (q *memoryQueue) leased(l store.Lease) *memoryEntry {
	e := q.entry(l)
	if e == nil || e.Fence != l.Fence || e.LeasedUntil.IsZero() {
		return nil
	}
	return e
}

// entry returns the message of a lease, whoever has it, or nil if it is gone.
func (q *memoryQueue) entry(l store.Lease) *memoryEntry {
	if q == nil {
		return nil
	}
	position, err := strconv.ParseInt(l.Entry, 10, 64)
	if err != nil {
		return nil
	}
	return q.entries[position]
}

func (m *Engine) matching(queue string, f *store.Filter, p store.Page) (all []*memoryEntry) {
	q := m.queues[queue]
	if q == nil {
		return nil
	}
	for _, position := range slices.Sorted(maps.Keys(q.entries)) {
		e := q.entries[position]
		if position > p.After && (p.Until == 0 || position <= p.Until) && f.Match(&e.Entry) {
			all = append(all, e)
		}
	}
	return all
}

// List implements [store.Inspector].
func (m *Engine) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	err = m.do(ctx, func() error {
		if err := storearg.Page(queue, p); err != nil {
			return err
		}
		all := m.matching(queue, &f, p)
		now := m.clock.Now()
		size := 0
		for _, e := range all[:min(p.Max, len(all))] {
			if size >= storearg.MaxBytes {
				break
			}
			size += len(e.Payload)
			entry := e.Entry
			entry.Message = e.Clone()
			if !entry.LeasedUntil.After(now) {
				entry.LeasedUntil = time.Time{}
			}
			list = append(list, entry)
		}
		return nil
	})
	return list, err
}

// Count implements [store.Inspector].
func (m *Engine) Count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	err = m.do(ctx, func() error {
		now := m.clock.Now()
		for _, e := range m.matching(queue, &f, store.Page{}) {
			next := e.at
			switch {
			case e.Held:
				c.Held++
				next = time.Time{}
			case e.at.Equal(parked):
				next = time.Time{}
			}
			c.Add(e.Cause, e.Meta.Reasons, 1, e.Arrived, next, e.Position)
		}
		c.SetAge(now)
		return nil
	})
	return c, err
}

// Purge implements [store.Inspector].
func (m *Engine) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	err = m.do(ctx, func() error {
		for _, e := range m.matching(queue, &f, store.Page{}) {
			m.remove(queue, e)
			n++
		}
		return nil
	})
	return n, err
}

// Claim implements [store.Inspector].
func (m *Engine) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (taken []store.Leased, err error) {
	err = m.do(ctx, func() error {
		if err := errors.Join(storearg.Page(queue, p), storearg.Take(queue, p.Max, lease)); err != nil {
			return err
		}
		now := m.clock.Now()
		size := 0
		for _, e := range m.matching(queue, &f, p) {
			if len(taken) < p.Max && size < storearg.MaxBytes && !e.Held && !e.LeasedUntil.After(now) {
				size += len(e.Payload)
				taken = append(taken, m.grant(m.queues[queue], queue, e, now.Add(lease)))
			}
		}
		return nil
	})
	return taken, err
}

// Queues implements [store.Inspector].
func (m *Engine) Queues(ctx context.Context) (names []string, err error) {
	err = m.do(ctx, func() error {
		names = slices.Sorted(maps.Keys(m.queues))
		return nil
	})
	return names, err
}

// Close implements [store.Store].
func (m *Engine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, wakers := range m.wakers {
		for _, w := range wakers {
			w.lookNow() // Wake returns if this engine has closed
		}
	}
	return nil
}

func (m *Engine) do(ctx context.Context, f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return store.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return f()
	}
}

// readyHeap orders entries by when they can be taken.
type readyHeap struct {
	list  []*memoryEntry
	which int // of memoryEntry.index
}

// due reports whether the first can be taken.
func (h *readyHeap) due(now time.Time) bool { return len(h.list) > 0 && !h.list[0].at.After(now) }

func (h *readyHeap) Len() int { return len(h.list) }

func (h *readyHeap) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.Position, b.Position)) < 0
}

func (h *readyHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index[h.which], h.list[j].index[h.which] = i, j
}

func (h *readyHeap) Push(x any) {
	e := x.(*memoryEntry)
	e.index[h.which] = len(h.list)
	h.list = append(h.list, e)
}

func (h *readyHeap) Pop() any {
	last := len(h.list) - 1
	e := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return e
}
