package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// local keeps records in memory: see Config.Local. It claims the messages that it lists,
// to move and remove them.
type local struct {
	store.Inspector
	memory *memory.Engine

	mu      sync.Mutex
	claimed map[entryRef]store.Lease
}

// entryRef is the entry of a message. A queue has one job at a time.
type entryRef struct {
	queue    string
	position int64
}

func (l *local) Locks() lock.Locks { return l.memory.Locks() }

func (l *local) Watch(ctx context.Context, changed func()) error { return l.memory.Watch(ctx, changed) }

func (l *local) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	return l.memory.Records(ctx, kind, after, limit)
}

// List claims messages, for the edits that follow.
func (l *local) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	p.Max = min(p.Max, 100) // a long step must not outlive its leases
	claimed, err := l.Claim(ctx, queue, f, p, defaultLease)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claimed {
		l.claimed[entryRef{queue, c.Position}] = c.Lease
		list = append(list, store.Entry{Message: c.Message, Position: c.Position})
	}
	return list, err
}

// Update changes messages when all records are written.
func (l *local) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return l.memory.Update(ctx, func(ctx context.Context, tx store.Tx) error { return f(ctx, &localTx{tx, l}) })
}

// release releases a queue's messages that List has claimed and that stay.
func (l *local) release(ctx context.Context, queue string) error {
	l.mu.Lock()
	var stay []store.Lease
	for at, lease := range l.claimed {
		if at.queue == queue {
			stay = append(stay, lease)
			delete(l.claimed, at)
		}
	}
	l.mu.Unlock()
	if len(stay) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return ignoreLost(l.Release(ctx, 0, stay...))
}

func ignoreLost(err error) error {
	if storearg.IsLost(err) {
		return nil
	}
	return err
}

type localTx struct {
	store.Tx
	l *local
}

// Edit implements [store.Tx].
func (t *localTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	var moves []store.Move
	var removed, due, all []store.Lease
	t.l.mu.Lock()
	for _, e := range edits {
		lease := t.l.claimed[entryRef{e.Queue, e.Entry.Position}]
		all = append(all, lease)
		switch e.Do {
		case store.Merge:
			moves = append(moves, store.Move{Lease: lease, Queue: e.To, Message: e.Entry.Message})
		case store.Purge:
			removed = append(removed, lease)
		case store.Due:
			due = append(due, lease)
		case store.Hold, store.Release: // Start has refused them
		}
	}
	t.l.mu.Unlock()
	var lost []store.Lease
	for _, f := range []func() error{
		func() error { return t.l.Move(ctx, moves...) }, func() error { return t.l.Done(ctx, removed...) },
		func() error { return t.l.Release(ctx, 0, due...) },
	} {
		err := f()
		if e, ok := errors.AsType[*store.LeaseError](err); ok {
			lost = append(lost, e.Lost...)
		} else if err != nil {
			return nil, err
		}
	}
	done := make([]bool, len(edits))
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	for i, lease := range all {
		delete(t.l.claimed, entryRef{edits[i].Queue, edits[i].Entry.Position})
		done[i] = !slices.Contains(lost, lease)
	}
	return done, nil
}
