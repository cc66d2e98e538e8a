package store

import (
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

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/forward"
	"github.com/weirflow/weir/internal/nils"
)

// Memory keeps queues in memory, for tests: they end with the process. Safe for concurrent use.
type Memory struct {
	*memoryQueues
	closed bool // guarded by mu
}

// memoryQueues is what the stores have in common that Reopen returns.
type memoryQueues struct {
	clock *forward.Clock
	limit int

	mu     sync.Mutex
	queues map[string]*memoryQueue
	size   int
	last   Position
}

var _ Inspector = (*Memory)(nil)

type memoryQueue struct {
	entries map[Position]*memoryEntry
	ids     map[Identity]Position
	ready   readyHeap
}

type memoryEntry struct {
	Entry
	at     time.Time // when it can be taken
	index  int       // in ready
	lapses int
}

// NewMemory returns an empty store that refuses more than limit messages; 0 means no limit. It panics if the clock is nil or
// the limit negative.
func NewMemory(c clock.Clock, limit int) *Memory {
	nils.Refuse("store: NewMemory", "clock", c)
	if limit < 0 {
		panic(fmt.Sprintf("store: NewMemory: the limit %d is negative", limit))
	}
	return &Memory{memoryQueues: &memoryQueues{clock: forward.New(c), limit: limit, queues: map[string]*memoryQueue{}}}
}

// Reopen returns an open store on the same queues: what a restarted worker, or another one, would find.
func (m *Memory) Reopen() *Memory { return &Memory{memoryQueues: m.memoryQueues} }

// Put implements [Store].
func (m *Memory) Put(ctx context.Context, queue string, ms ...Message) error {
	return m.do(ctx, func() error {
		if err := CheckPut(queue, ms...); err != nil {
			return err
		}
		ms, err := stored(ms)
		if err != nil {
			return err
		}
		fresh := map[Identity]bool{}
		for i := range ms {
			if id := ms[i].Identity(); !m.has(queue, id) {
				fresh[id] = true
			}
		}
		if m.limit > 0 && m.size+len(fresh) > m.limit {
			return fmt.Errorf("%w: %d messages, the limit is %d", ErrFull, m.size, m.limit)
		}
		for i := range ms {
			m.put(queue, &ms[i])
		}
		return nil
	})
}

// stored returns copies of messages as a store on disk would have them.
func stored(ms []Message) ([]Message, error) {
	copies := make([]Message, len(ms))
	for i := range ms {
		b, err := json.Marshal(ms[i].Meta)
		if err != nil {
			return nil, fmt.Errorf("store: message %q: %w", ms[i].Meta.ID, err)
		}
		copies[i] = ms[i].Clone()
		copies[i].Meta = delivery.Meta{}
		if err := json.Unmarshal(b, &copies[i].Meta); err != nil {
			return nil, fmt.Errorf("store: message %q: %w", ms[i].Meta.ID, err)
		}
	}
	return copies, nil
}

func (m *Memory) has(queue string, id Identity) bool {
	q := m.queues[queue]
	if q == nil {
		return false
	}
	_, ok := q.ids[id]
	return ok
}

func (m *Memory) put(queue string, message *Message) {
	if m.has(queue, message.Identity()) {
		return
	}
	q := m.queues[queue]
	if q == nil {
		q = &memoryQueue{entries: map[Position]*memoryEntry{}, ids: map[Identity]Position{}}
		m.queues[queue] = q
	}
	m.last++
	m.size++
	now := m.clock.Now()
	e := &memoryEntry{Entry: Entry{Message: *message, Position: m.last, Arrived: now}, at: now.Add(message.Delay)}
	e.Meta.Due, e.Delay = e.at, 0
	q.entries[e.Position] = e
	q.ids[e.Identity()] = e.Position
	heap.Push(&q.ready, e)
}

func (m *Memory) remove(queue string, e *memoryEntry) {
	q := m.queues[queue]
	heap.Remove(&q.ready, e.index)
	delete(q.entries, e.Position)
	delete(q.ids, e.Identity())
	m.size--
	if len(q.entries) == 0 {
		delete(m.queues, queue)
	}
}

// Take implements [Store].
func (m *Memory) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []Leased, err error) {
	return taken, m.do(ctx, func() error {
		if err := CheckTake(queue, limit, lease); err != nil {
			return err
		}
		q := m.queues[queue]
		now := m.clock.Now()
		for size := 0; q != nil && len(taken) < limit && size < MaxBytes && !q.ready[0].at.After(now); {
			size += len(q.ready[0].Payload)
			taken = append(taken, m.grant(q, queue, q.ready[0], now.Add(lease)))
		}
		return nil
	})
}

func (m *Memory) grant(q *memoryQueue, queue string, e *memoryEntry, until time.Time) Leased {
	if !e.LeasedUntil.IsZero() {
		e.lapses++
	}
	e.Fence++
	e.LeasedUntil = until
	q.set(e, until)
	return Leased{
		Message: e.Clone(), Position: e.Position, Lapses: e.lapses,
		Lease: Lease{Queue: queue, Entry: strconv.FormatInt(int64(e.Position), 10), Fence: e.Fence},
	}
}

func (q *memoryQueue) set(e *memoryEntry, at time.Time) {
	e.at = at
	heap.Fix(&q.ready, e.index)
}

// Extend implements [Store].
func (m *Memory) Extend(ctx context.Context, d time.Duration, leases ...Lease) error {
	return m.settle(ctx, leases, func() error { return CheckExtend(d) }, func(_ int, q *memoryQueue, e *memoryEntry) {
		e.LeasedUntil = m.clock.Now().Add(d)
		q.set(e, e.LeasedUntil)
	})
}

// Done implements [Store].
func (m *Memory) Done(ctx context.Context, leases ...Lease) error {
	return m.settle(ctx, leases, nil, func(i int, _ *memoryQueue, e *memoryEntry) { m.remove(leases[i].Queue, e) })
}

// Release implements [Store].
func (m *Memory) Release(ctx context.Context, delay time.Duration, leases ...Lease) error {
	return m.settle(ctx, leases, func() error { return CheckRelease(delay) }, func(_ int, q *memoryQueue, e *memoryEntry) {
		e.LeasedUntil = time.Time{}
		e.Meta.Due = m.clock.Now().Add(delay)
		q.set(e, e.Meta.Due)
	})
}

// Move implements [Inspector].
func (m *Memory) Move(ctx context.Context, moves ...Move) error {
	leases, messages := make([]Lease, len(moves)), make([]Message, len(moves))
	for i := range moves {
		leases[i], messages[i] = moves[i].Lease, moves[i].Message
	}
	messages, err := stored(messages)
	check := func() error { return errors.Join(CheckMove(moves...), err) }
	return m.settle(ctx, leases, check, func(i int, _ *memoryQueue, e *memoryEntry) {
		m.remove(leases[i].Queue, e)
		m.put(moves[i].Queue, &messages[i])
	})
}

// settle calls f for the leases that are not lost.
func (m *Memory) settle(ctx context.Context, leases []Lease, check func() error, f func(i int, q *memoryQueue, e *memoryEntry)) error {
	return m.do(ctx, func() error {
		if check != nil {
			if err := check(); err != nil {
				return err
			}
		}
		var lost []Lease
		for i, l := range leases {
			q := m.queues[l.Queue]
			e := q.leased(l)
			if e == nil {
				lost = append(lost, l)
				continue
			}
			f(i, q, e)
		}
		return Lost(lost)
	})
}

// leased returns the entry of a lease, or nil if the lease is lost.
func (q *memoryQueue) leased(l Lease) *memoryEntry {
	if q == nil {
		return nil
	}
	position, err := strconv.ParseInt(l.Entry, 10, 64)
	if err != nil {
		return nil
	}
	e := q.entries[Position(position)]
	if e == nil || e.Fence != l.Fence || e.LeasedUntil.IsZero() {
		return nil
	}
	return e
}

// matching returns the entries of a queue that match, in order.
func (m *Memory) matching(queue string, f *Filter, p Page) (all []*memoryEntry) {
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

// List implements [Inspector].
func (m *Memory) List(ctx context.Context, queue string, f Filter, p Page) (list []Entry, err error) {
	return list, m.do(ctx, func() error {
		if err := CheckPage(queue, p); err != nil {
			return err
		}
		all := m.matching(queue, &f, p)
		now := m.clock.Now()
		size := 0
		for _, e := range all[:min(p.Max, len(all))] {
			if size >= MaxBytes {
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
}

// Count implements [Inspector].
func (m *Memory) Count(ctx context.Context, queue string, f Filter) (c Counts, err error) {
	return c, m.do(ctx, func() error {
		now := m.clock.Now()
		for _, e := range m.matching(queue, &f, Page{}) {
			c.Add(e.Cause, e.Meta.Reasons, 1, e.Arrived, e.at, e.Position)
		}
		c.SetAge(now)
		return nil
	})
}

// Purge implements [Inspector].
func (m *Memory) Purge(ctx context.Context, queue string, f Filter) (n int, err error) {
	return n, m.do(ctx, func() error {
		for _, e := range m.matching(queue, &f, Page{}) {
			m.remove(queue, e)
			n++
		}
		return nil
	})
}

// Claim implements [Inspector].
func (m *Memory) Claim(ctx context.Context, queue string, f Filter, p Page, lease time.Duration) (taken []Leased, err error) {
	return taken, m.do(ctx, func() error {
		if err := errors.Join(CheckPage(queue, p), CheckTake(queue, p.Max, lease)); err != nil {
			return err
		}
		now := m.clock.Now()
		size := 0
		for _, e := range m.matching(queue, &f, p) {
			if len(taken) < p.Max && size < MaxBytes && !e.LeasedUntil.After(now) {
				size += len(e.Payload)
				taken = append(taken, m.grant(m.queues[queue], queue, e, now.Add(lease)))
			}
		}
		return nil
	})
}

// Queues implements [Inspector].
func (m *Memory) Queues(ctx context.Context) (names []string, err error) {
	return names, m.do(ctx, func() error {
		names = slices.Sorted(maps.Keys(m.queues))
		return nil
	})
}

// Close implements [Store].
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

func (m *Memory) do(ctx context.Context, f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return f()
	}
}

// readyHeap orders entries by when they can be taken.
type readyHeap []*memoryEntry

func (h readyHeap) Len() int { return len(h) }
func (h readyHeap) Less(i, j int) bool {
	if c := h[i].at.Compare(h[j].at); c != 0 {
		return c < 0
	}
	return h[i].Position < h[j].Position
}

func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *readyHeap) Push(x any) {
	e := x.(*memoryEntry)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *readyHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
