package jsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
)

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func() error {
		if err := checkQueue(storearg.Take(queue, limit, lease), queue); err != nil {
			return err
		}
		ix, err := s.index(ctx, queue)
		if err != nil {
			return err
		}
		for size := 0; len(taken) < limit && size < store.MaxBytes; {
			next, ok := ix.next()
			if !ok || s.surelyLater(next) {
				return nil
			}
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			items := ix.due(now, min(limit-len(taken), maxBatch))
			if len(items) == 0 {
				return nil
			}
			for some := range slices.Chunk(items, readAtOnce) {
				got, n, err := s.takeSome(ctx, ix, queue, some, now, lease, store.MaxBytes-size)
				taken, size = append(taken, got...), size+n
				if err != nil || size >= store.MaxBytes {
					return err
				}
			}
		}
		return nil
	})
	if len(taken) > 0 {
		err = nil // the next call returns it
	}
	return taken, err
}

// readAtOnce is how many messages are read before it is known how large they are.
const readAtOnce = 64

// takeSome takes messages up to that with which they have room bytes, and returns how many bytes they have.
func (s *Store) takeSome(ctx context.Context, ix *index, queue string, items []item, now uint64, lease time.Duration, room int) (
	taken []store.Leased, size int, _ error,
) {
	read := make([]*record, len(items))
	errs := make([]error, len(items))
	parallel.Do(len(items), func(i int) { read[i], errs[i] = s.readOne(ctx, ix, queue, items[i]) })
	var fit []*record
	for _, r := range read {
		if r != nil && size < room {
			fit = append(fit, r)
			size += len(r.body)
		}
	}
	got := make([]*store.Leased, len(fit))
	errs = append(errs, make([]error, len(fit))...)
	parallel.Do(len(fit), func(i int) { got[i], errs[len(items)+i] = s.lease(ctx, ix, queue, fit[i], now, lease) })
	for _, l := range got {
		if l != nil {
			taken = append(taken, *l)
		}
	}
	return taken, size, errors.Join(errs...)
}

// readOne reads a message, if it is as the index says.
func (s *Store) readOne(ctx context.Context, ix *index, queue string, it item) (*record, error) {
	r, err := s.readSeq(ctx, it.seq)
	if err != nil {
		return nil, err
	}
	if r == nil {
		subject := s.queueSubject(queue) + it.identity
		if r, err = s.read(ctx, subject); err != nil {
			return nil, err
		}
		ix.refresh(it.identity, it.seq, r)
		return nil, nil
	}
	return r, nil
}

// lease takes a message that was read, unless it is not due or has changed. ix may be nil.
func (s *Store) lease(ctx context.Context, ix *index, queue string, r *record, now uint64, lease time.Duration) (*store.Leased, error) {
	if ix != nil && r.ready() > now {
		ix.refresh(identityOf(r.subject), r.seq, r)
		return nil, nil
	}
	m, err := r.message()
	if err != nil {
		return nil, err
	}
	next := r.then(leased, lease)
	next.fence++
	if r.kind == leased {
		next.lapses = min(next.lapses+1, maxLapses)
	}
	seq, err := s.publish(ctx, r.subject, next, r.body, r.seq)
	if errors.Is(err, errChanged) {
		if ix == nil {
			return nil, nil
		}
		newer, err := s.read(ctx, r.subject)
		if err == nil {
			ix.refresh(identityOf(r.subject), r.seq, newer)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	if ix != nil {
		// The server has it later than now: so the index is early, and looks again.
		ix.refresh(identityOf(r.subject), r.seq, &record{subject: r.subject, seq: seq, at: now, state: next})
		ix.published(seq)
	}
	return &store.Leased{
		Message:  m,
		Lease:    store.Lease{Queue: queue, Entry: entry{identityOf(r.subject), r.position}.String(), Fence: next.fence},
		Position: store.Position(r.position),
		Lapses:   int(next.lapses),
	}, nil
}

// settle calls f with what each lease is of, until that has not changed meanwhile.
func (s *Store) settle(ctx context.Context, leases []store.Lease, f func(l store.Lease, e entry, r *record) error) error {
	lost := make([]bool, len(leases))
	errs := make([]error, len(leases))
	parallel.Do(len(leases), func(i int) {
		l := leases[i]
		e, err := parseEntry(l.Entry)
		if err != nil || len(l.Queue) > maxQueue {
			lost[i] = true
			return
		}
		for range maxTries {
			var r *record
			if r, err = s.read(ctx, s.queueSubject(l.Queue)+e.identity); err != nil {
				break
			}
			if !r.holds(e, l.Fence) {
				lost[i] = true
				return
			}
			if err = f(l, e, r); !errors.Is(err, errChanged) {
				break
			}
		}
		errs[i] = err
	})
	var gone []store.Lease
	for i, is := range lost {
		if is {
			gone = append(gone, leases[i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return storearg.Lost(gone)
}

// change publishes another state of a message that was taken.
func (s *Store) change(ctx context.Context, l store.Lease, r *record, st state) error {
	seq, err := s.publish(ctx, r.subject, st, r.body, r.seq)
	if err != nil {
		return err
	}
	if ix := s.opened(l.Queue); ix != nil {
		ix.published(seq)
	}
	return nil
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		if err := storearg.Extend(d); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(leased, d)) })
	})
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		if err := storearg.Release(delay); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(waiting, delay)) })
	})
}

// Done implements [store.Store]. A sequence number is that of one state, so to remove by it is to remove what was taken, or
// nothing.
func (s *Store) Done(ctx context.Context, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		done := make([]bool, len(leases))
		parallel.Do(len(leases), func(i int) {
			if e, err := parseEntry(leases[i].Entry); err == nil {
				if ix := s.opened(leases[i].Queue); ix != nil {
					if seq, ok := ix.held(e, leases[i].Fence); ok {
						done[i] = s.remove(ctx, leases[i].Queue, e.identity, seq) == nil
					}
				}
			}
		})
		var rest []store.Lease
		for i, is := range done {
			if !is {
				rest = append(rest, leases[i])
			}
		}
		return s.settle(ctx, rest, func(l store.Lease, e entry, r *record) error { return s.remove(ctx, l.Queue, e.identity, r.seq) })
	})
}

// remove removes a state, or returns errChanged if it is not there.
func (s *Store) remove(ctx context.Context, queue, identity string, seq uint64) error {
	err := s.stream.DeleteMsg(ctx, seq)
	switch {
	case err == nil:
		if ix := s.opened(queue); ix != nil {
			ix.refresh(identity, seq, nil)
		}
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if _, ok := errors.AsType[*jetstream.APIError](err); ok || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		r, readErr := s.readSeq(ctx, seq)
		if readErr == nil && r == nil {
			return errChanged
		}
		err = errors.Join(err, readErr)
	}
	return fmt.Errorf("jsstore: stream %s: removing message %d: %w", s.name, seq, err)
}
