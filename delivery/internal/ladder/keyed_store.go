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
		if _, again := k.taken[at]; again { // its lease had ended: it joins the message in flight (law D2)
			continue
		}
		e := k.get(meta.Key)
		e.running++
		put := leases.AcceptedPutOf(meta)
		k.removed(e, put)
		k.taken[at] = taken{key: meta.Key, of: put, visit: meta.Visit, merges: meta.Merges}
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
		first, err := s.takeFirst(ctx, key, lease)
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
		case first.state == nothingParked:
			k.size -= e.parked
			e.parked = 0
			k.next(key)
		case first.state == mustWait:
			e.notBefore = first.until
			k.free = append(k.free, key)
		case first.state == wasTaken:
			if e.parked > 0 {
				e.parked--
				k.size--
			}
			e.running++
			m := &first.message
			k.taken[entryRef{k.blocked, m.Lease.Entry}] = taken{key: key, of: leases.AcceptedPutOf(&m.Meta), parked: true}
			ms = append(ms, *m)
		}
		k.mu.Unlock()
	}
	return ms, nil
}

// nearby is how far behind the last message of a key, in positions, the next one is
// looked for before all of its messages are.
const nearby = 500

// firstParked is the first parked message of a key, as takeFirst has found it.
type firstParked struct {
	state   parkedState
	message store.Leased // if wasTaken
	until   time.Time    // if mustWait: when to look again
}

type parkedState uint8

const (
	nothingParked parkedState = iota
	mustWait                  // it is not due, or another worker has leased it, or a person holds it
	wasTaken
)

// takeFirst takes the first parked message of a key, if it can be taken.
func (s *keyedStore[T]) takeFirst(ctx context.Context, key string, lease time.Duration) (firstParked, error) {
	k := s.keys
	e, ok, err := s.findFirst(ctx, key)
	if err != nil {
		return firstParked{}, err
	}
	if !ok {
		return firstParked{state: nothingParked}, nil
	}
	now := k.clock.Now()
	if e.Meta.Due.After(now) {
		return firstParked{state: mustWait, until: e.Meta.Due}, nil
	}
	ms, err := s.Claim(ctx, k.blocked, store.Filter{Key: key}, store.Page{After: e.Position - 1, Until: e.Position, Max: 1}, lease)
	if err != nil || len(ms) == 0 { // another worker may have it, which may have died
		k.parkedElsewhere(key, grant{e.Position, e.Fence, e.LeasedUntil})
		return firstParked{state: mustWait, until: now.Add(time.Second)}, err
	}
	return firstParked{state: wasTaken, message: ms[0]}, nil
}

// setAsidePage is how many messages of a key are listed at once behind a message that was
// set aside.
const setAsidePage = 100

// findFirst returns the first parked message of a key, without messages that were set
// aside for good. ok is false if there is no such message.
func (s *keyedStore[T]) findFirst(ctx context.Context, key string) (first store.Entry, ok bool, err error) {
	k := s.keys
	k.mu.Lock()
	last := k.get(key).last
	k.mu.Unlock()
	pages := []store.Page{{Max: 1}}
	if last > 0 { // the next message is near: do not make the engine look at all messages of the key each time
		pages = []store.Page{{After: last - 1, Until: last + nearby, Max: 1}, {Max: 1}}
	}
	for len(pages) > 0 {
		found, err := s.List(ctx, k.blocked, store.Filter{Key: key}, pages[0])
		if err != nil {
			return first, false, err
		}
		if len(found) == 0 {
			pages = pages[1:]
			continue
		}
		now := k.clock.Now()
		at := slices.IndexFunc(found, func(e store.Entry) bool { return !leases.IsSetAside(e.Meta.Due, now) })
		if at < 0 {
			pages[0].After = found[len(found)-1].Position
			pages[0].Max = setAsidePage // there may be many
			continue
		}
		first = found[at]
		k.mu.Lock()
		k.get(key).last = first.Position
		k.mu.Unlock()
		return first, true, nil
	}
	return first, false, nil
}

// Done implements [store.Store].
func (s *keyedStore[T]) Done(ctx context.Context, leases ...store.Lease) error {
	err := s.Inspector.Done(ctx, leases...)
	s.settled(err, leases, hasLeft)
	return err
}

// Release implements [store.Store].
func (s *keyedStore[T]) Release(ctx context.Context, delay time.Duration, released ...store.Lease) error {
	err := s.Inspector.Release(ctx, delay, released...)
	if !leases.SetsAside(delay) {
		s.settled(err, released, waitsAgain)
		return err
	}
	// Later messages of the key must not wait for a message that was set aside. But if its
	// lease was lost, it was not set aside, and is delivered again.
	lost := storearg.LostOf(err)
	isLost := func(l store.Lease) bool { return slices.Contains(lost, l) }
	s.settled(err, lost, waitsAgain)
	s.settled(err, slices.DeleteFunc(slices.Clone(released), isLost), hasLeft)
	return err
}

// Move implements [store.Inspector].
func (s *keyedStore[T]) Move(ctx context.Context, moves ...store.Move) error {
	err := s.Inspector.Move(ctx, moves...)
	leases := make([]store.Lease, len(moves))
	for i := range moves {
		leases[i] = moves[i].Lease
	}
	s.settled(err, leases, hasLeft)
	return err
}

// afterSettlement is the place of a message after its settlement.
type afterSettlement uint8

const (
	hasLeft    afterSettlement = iota // it is done, was moved, or was set aside in its queue for good
	waitsAgain                        // it was released, and waits in its queue
)

// settled notes that messages are no longer in flight. err is the error of the store.
func (s *keyedStore[T]) settled(err error, leases []store.Lease, after afterSettlement) {
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
		case after == hasLeft:
		case t.parked:
			e.parked++
			k.size++
		default:
			k.wait(t.key, t.of, waiting{queue: l.Queue, stored: true, due: k.clock.Now(), visit: t.visit, merges: t.merges})
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
