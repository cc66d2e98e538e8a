package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// never is when a held message can be taken.
var never = time.Unix(1<<40, 0)

type recordKey struct{ kind, name string }

// Locks implements [store.Keeper].
func (m *Engine) Locks() lock.Locks { return m.locks }

// Update implements [store.Keeper].
func (m *Engine) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return m.do(ctx, func() error {
		tx := &memoryTx{m: m}
		err := f(ctx, tx)
		if err != nil {
			for _, undo := range slices.Backward(tx.undo) {
				undo()
			}
		} else if tx.watched {
			for _, changed := range m.watchers {
				(*changed)()
			}
		}
		return err
	})
}

// Watch implements [store.Keeper].
func (m *Engine) Watch(ctx context.Context, changed func()) error {
	if err := m.do(ctx, func() error { m.watchers = append(m.watchers, &changed); return nil }); err != nil {
		return err
	}
	changed()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = slices.DeleteFunc(m.watchers, func(f *func()) bool { return f == &changed })
	return context.Cause(ctx)
}

// Records implements [store.Keeper].
func (m *Engine) Records(ctx context.Context, kind, after string, limit int) (list []store.Record, err error) {
	err = m.do(ctx, func() error {
		list = m.list(kind, after, limit)
		return nil
	})
	return list, err
}

func (m *Engine) list(kind, after string, limit int) []store.Record {
	all := slices.Collect(maps.Values(m.records))
	all = slices.DeleteFunc(all, func(r store.Record) bool { return r.Kind != kind || r.Name <= after })
	slices.SortFunc(all, func(a, b store.Record) int { return strings.Compare(a.Name, b.Name) })
	return all[:min(limit, len(all))]
}

// memoryTx undoes its changes if it fails.
type memoryTx struct {
	m       *Engine
	undo    []func()
	watched bool // it has announced something
}

func (t *memoryTx) Announce() { t.watched = true }

func (t *memoryTx) Now() time.Time { return t.m.clock.Now() }

func (t *memoryTx) Records(_ context.Context, kind, after string, limit int) ([]store.Record, error) {
	return t.m.list(kind, after, limit), nil
}

func (t *memoryTx) Write(_ context.Context, r store.Record) error {
	if err := storearg.Record(r); err != nil {
		return err
	}
	key := recordKey{r.Kind, r.Name}
	old, there := t.m.records[key]
	if old.Version != r.Version {
		return store.ErrChanged
	}
	t.undo = append(t.undo, func() {
		delete(t.m.records, key)
		if there {
			t.m.records[key] = old
		}
	})
	if r.Value == "" {
		delete(t.m.records, key)
		return nil
	}
	r.Version++
	t.m.records[key] = r
	return nil
}

func (t *memoryTx) Edit(_ context.Context, edits ...store.Edit) ([]bool, error) {
	if err := storearg.Edits(edits...); err != nil {
		return nil, err
	}
	done := make([]bool, len(edits))
	for i := range edits {
		var err error
		done[i], err = t.edit(&edits[i])
		if err != nil {
			return nil, err
		}
	}
	return done, nil
}

func (t *memoryTx) edit(e *store.Edit) (bool, error) {
	m := t.m
	q := m.queues[e.Queue]
	if q == nil {
		return false, nil
	}
	there := q.entries[e.Entry.Position]
	if there == nil || e.Do != store.Purge && (there.Fence != e.Entry.Fence || there.LeasedUntil.After(m.clock.Now())) {
		return false, nil
	}
	was, isOrdered := *there, q.order != nil
	switch e.Do {
	case store.Merge:
		ms, err := stored([]store.Message{e.Entry.Message})
		if err != nil {
			return false, err
		}
		if m.has(e.To, ms[0].Identity()) {
			return false, nil
		}
		m.remove(e.Queue, there)
		m.put(e.To, &ms[0])
		put := m.queues[e.To].entries[m.last]
		t.undo = append(t.undo, func() {
			m.remove(e.To, put)
			m.restore(e.Queue, there, isOrdered)
		})
		return true, nil
	case store.Purge:
		m.remove(e.Queue, there)
		t.undo = append(t.undo, func() { m.restore(e.Queue, there, isOrdered) })
		return true, nil
	case store.Hold, store.Release:
		hold := e.Do == store.Hold
		if there.Held == hold {
			return false, nil
		}
		there.Held = hold
		if hold {
			q.setLease(there, time.Time{})
			q.set(there, never)
		} else {
			q.set(there, there.Meta.Due)
		}
		t.undo = append(t.undo, func() {
			there.Held = was.Held
			m.queues[e.Queue].setLease(there, was.LeasedUntil)
			m.queues[e.Queue].set(there, was.at)
		})
		return true, nil
	case store.Due:
		now := m.clock.Now()
		if there.Held || !there.at.After(now) || there.at.Equal(parked) {
			return false, nil
		}
		there.Meta.Due = now
		q.set(there, now)
		t.undo = append(t.undo, func() {
			there.Meta.Due = was.Meta.Due
			m.queues[e.Queue].set(there, was.at)
		})
		return true, nil
	}
	return false, fmt.Errorf("memory: unknown action: %q", e.Do)
}

// restore puts an entry back. isOrdered is whether its queue kept the order of keys: a
// queue that had become empty must keep it again.
func (m *Engine) restore(queue string, e *memoryEntry, isOrdered bool) {
	m.size++
	m.insert(queue, e)
	if isOrdered {
		m.queues[queue].keepOrder()
	}
}
