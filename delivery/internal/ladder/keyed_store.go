package ladder

import (
	"context"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// keyedStore is the store as the sources of layers and of parked messages see it: it
// notes which messages of a key are in flight.
type keyedStore[T any] struct {
	store.Inspector
	keys *keys[T]
}

// Take implements [store.Store].
func (s *keyedStore[T]) Take(ctx context.Context, queue string, limit int, lease time.Duration) (ms []store.Leased, err error) {
	if queue == s.keys.blocked {
		return s.takeParked(ctx, limit, lease)
	}
	ms, err = s.Inspector.Take(ctx, queue, limit, lease)
	k := s.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range ms {
		meta := &ms[i].Meta
		if meta.Key == "" {
			continue
		}
		at := entryRef{queue, ms[i].Lease.Entry}
		if _, again := k.taken[at]; again { // its lease had ended: it joins the one in flight (law D2)
			continue
		}
		e := k.get(meta.Key)
		e.running++
		d := leases.DeliveryOf(meta)
		k.removed(e, d)
		k.taken[at] = taken{key: meta.Key, of: d, visit: meta.Visit, merges: meta.Merges}
	}
	return ms, err
}

// takeParked takes the first parked message of each key that is free, and no later one.
func (s *keyedStore[T]) takeParked(ctx context.Context, limit int, lease time.Duration) (ms []store.Leased, err error) {
	k := s.keys
	k.mu.Lock()
	now := k.clock.Now()
	var free []string
	k.free = slices.DeleteFunc(k.free, func(key string) bool {
		e := k.of[key]
		switch {
		case e == nil || e.running > 0 || len(e.waits)+e.parking > 0:
			return true // it will be free again
		case len(free) == limit || e.notBefore.After(now):
			return false
		}
		free = append(free, key)
		return true
	})
	k.mu.Unlock()
	for i, key := range free {
		m, found, until, err := s.takeFirst(ctx, key, lease)
		k.mu.Lock()
		e := k.get(key)
		switch {
		case err != nil:
			k.free = append(k.free, free[i:]...)
			k.mu.Unlock()
			if len(ms) > 0 {
				return ms, nil // the next call finds the error
			}
			return nil, err
		case !found:
			k.size -= e.parked
			e.parked = 0
			k.next(key)
		case m == nil:
			e.notBefore = until
			k.free = append(k.free, key)
		default:
			if e.parked > 0 {
				e.parked--
				k.size--
			}
			e.running++
			k.taken[entryRef{k.blocked, m.Lease.Entry}] = taken{key: key, of: leases.DeliveryOf(&m.Meta), parked: true}
			ms = append(ms, *m)
		}
		k.mu.Unlock()
	}
	return ms, nil
}

// nearby is how far behind the last message of a key, in positions, the next one is
// looked for before all of its messages are.
const nearby = 500

// takeFirst takes the first parked message of a key. Without one, found is false. It may
// be leased, or not be due: until then m is nil.
func (s *keyedStore[T]) takeFirst(ctx context.Context, key string, lease time.Duration) (m *store.Leased, found bool, until time.Time, err error) {
	f, k := store.Filter{Key: key}, s.keys
	k.mu.Lock()
	last := k.get(key).last
	k.mu.Unlock()
	var first []store.Entry
	if last > 0 { // of a key with many, the next one is near: to look for all of them each time would take the square of their number
		first, err = s.List(ctx, k.blocked, f, store.Page{After: last - 1, Until: last + nearby, Max: 1})
	}
	if err == nil && len(first) == 0 {
		first, err = s.List(ctx, k.blocked, f, store.Page{Max: 1})
	}
	if err != nil || len(first) == 0 {
		return nil, false, until, err
	}
	e, now := first[0], k.clock.Now()
	k.mu.Lock()
	k.get(key).last = e.Position
	k.mu.Unlock()
	if e.Meta.Due.After(now) {
		return nil, true, e.Meta.Due, nil
	}
	ms, err := s.Claim(ctx, s.keys.blocked, f, store.Page{After: e.Position - 1, Until: e.Position, Max: 1}, lease)
	if err != nil || len(ms) == 0 { // it is leased to a worker that has died
		s.keys.parkedElsewhere(key, grant{e.Position, e.Fence, e.LeasedUntil})
		return nil, true, now.Add(time.Second), err
	}
	return &ms[0], true, until, nil
}

// Done implements [store.Store].
func (s *keyedStore[T]) Done(ctx context.Context, leases ...store.Lease) error {
	err := s.Inspector.Done(ctx, leases...)
	s.settled(err, leases, false)
	return err
}

// Release implements [store.Store].
func (s *keyedStore[T]) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	err := s.Inspector.Release(ctx, delay, leases...)
	s.settled(err, leases, true)
	return err
}

// Move implements [store.Inspector].
func (s *keyedStore[T]) Move(ctx context.Context, moves ...store.Move) error {
	err := s.Inspector.Move(ctx, moves...)
	leases := make([]store.Lease, len(moves))
	for i := range moves {
		leases[i] = moves[i].Lease
	}
	s.settled(err, leases, false)
	return err
}

// settled notes that messages are no more in flight: they are done, or were released.
func (s *keyedStore[T]) settled(err error, leases []store.Lease, back bool) {
	if err != nil && !storearg.IsLost(err) {
		return // it will be called again
	}
	k := s.keys
	k.mu.Lock()
	for _, l := range leases {
		at := entryRef{l.Queue, l.Entry}
		t, ok := k.taken[at]
		if !ok {
			continue
		}
		delete(k.taken, at)
		e := k.get(t.key)
		e.running--
		switch {
		case !back:
		case t.parked:
			e.parked++
			k.size++
		default:
			k.wait(t.key, t.of, waiting{l.Queue, true, k.clock.Now(), t.visit, t.merges})
		}
		k.next(t.key)
	}
	wake := k.wake
	k.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// Wake implements [store.Waker]. The source of parked messages polls: that asks the store
// only for keys that are free.
func (s *keyedStore[T]) Wake(ctx context.Context, queue string, wake func(misses bool)) error {
	w, ok := s.Inspector.(store.Waker)
	switch {
	case queue == s.keys.blocked:
		s.keys.mu.Lock()
		s.keys.wake = append(s.keys.wake, func() { wake(true) })
		s.keys.mu.Unlock()
	case ok:
		return w.Wake(ctx, queue, wake)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
