package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// Take implements [store.Store].
func (s *Engine) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		if err := checkQueue(storearg.Take(queue, limit, lease), queue); err != nil {
			return err
		}
		taken, err = s.take(ctx, queue, limit, lease)
		return err
	})
	if len(taken) > 0 {
		err = nil // the next call returns it
	}
	return taken, err
}

func (s *Engine) take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, _ error) {
	ix, err := s.index(ctx, queue, 0, false)
	if err != nil {
		return nil, err
	}
	size := 0
	for len(taken) < limit && size < storearg.MaxBytes {
		next, ok := ix.next()
		if !ok || s.surelyLater(next) {
			return taken, nil
		}
		now, err := s.now(ctx)
		if err != nil {
			return taken, err
		}
		items := ix.due(now, min(limit-len(taken), maxBatch), storearg.MaxBytes-size)
		if len(items) == 0 {
			return taken, nil
		}
		parts := slices.Collect(slices.Chunk(items, part))
		got := make([][]store.Leased, len(parts))
		errs := make([]error, len(parts))
		parallel.Do(len(parts), func(i int) { got[i], errs[i] = s.takeSome(ctx, ix, queue, parts[i], now, lease) })
		for _, ms := range got {
			for i := range ms {
				size += len(ms[i].Payload)
			}
			taken = append(taken, ms...)
		}
		if err := errors.Join(errs...); err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// part is the number of messages in a transaction: one part is read while another is
// taken.
const part = 128

// takeSome takes messages whose states are as in the index.
func (s *Engine) takeSome(ctx context.Context, ix *index, queue string, items []item, now uint64, lease time.Duration) ([]store.Leased, error) {
	read := make([]*record, len(items))
	errs := make([]error, len(items))
	parallel.Do(len(items), func(i int) { read[i], errs[i] = s.readOne(ctx, ix, queue, items[i]) })
	var fit []*record
	for i, r := range read {
		switch {
		case r == nil:
		case r.ready() > now:
			ix.refresh(items[i].identity, r.seq, r)
		default:
			fit = append(fit, r)
		}
	}
	taken, err := s.leaseAll(ctx, ix, queue, fit, now, lease)
	return taken, errors.Join(append(errs, err)...)
}

// leaseAll leases messages that were read, in one transaction if they have not changed.
func (s *Engine) leaseAll(ctx context.Context, ix *index, queue string, rs []*record, now uint64, lease time.Duration) (taken []store.Leased, _ error) {
	ms := make([]*nats.Msg, len(rs))
	for i, r := range rs {
		ms[i] = s.message(r.subject, r.leased(lease), r.why, r.body, r.seq)
	}
	last, err := s.publishAll(ctx, ms)
	if err == nil {
		for i, r := range rs {
			taken = append(taken, s.taken(ix, queue, r, lease, now, last-uint64(len(rs)-1-i)))
		}
		return taken, nil
	}
	if _, answered := errors.AsType[*jetstream.APIError](err); !answered && !errors.Is(err, errChanged) && !errors.Is(err, message.ErrRefused) {
		return nil, err // they may be taken
	}
	if ix != nil { // without messages that another Take of this process has taken
		rs = slices.DeleteFunc(rs, func(r *record) bool {
			it, there := ix.has(identityOf(r.subject))
			return !there || it.seq != r.seq
		})
	}
	got := make([]*store.Leased, len(rs))
	errs := make([]error, len(rs))
	parallel.Do(len(rs), func(i int) { got[i], errs[i] = s.lease(ctx, ix, queue, rs[i], now, lease) })
	for _, l := range got {
		if l != nil {
			taken = append(taken, *l)
		}
	}
	return taken, errors.Join(errs...)
}

func (s *Engine) readOne(ctx context.Context, ix *index, queue string, it item) (*record, error) {
	r, err := s.readSeq(ctx, it.seq)
	if err != nil {
		return nil, err
	}
	if r == nil {
		subject := s.queueSubject(queue) + it.identity
		r, err = s.read(ctx, subject)
		if err != nil {
			return nil, err
		}
		ix.refresh(it.identity, it.seq, r)
		return nil, nil
	}
	return r, nil
}

// lease takes a message, unless it has changed. ix may be nil.
func (s *Engine) lease(ctx context.Context, ix *index, queue string, r *record, now uint64, lease time.Duration) (*store.Leased, error) {
	seq, err := s.publish(ctx, r.subject, r.leased(lease), r.why, r.body, r.seq)
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
	l := s.taken(ix, queue, r, lease, now, seq)
	return &l, nil
}

func (r *record) leased(lease time.Duration) state {
	next := r.then(leased, lease)
	next.fence++
	if r.kind == leased {
		next.lapses = min(next.lapses+1, maxLapses)
	}
	return next
}

// taken returns a leased message, whose state is stored as seq. ix may be nil.
func (s *Engine) taken(ix *index, queue string, r *record, lease time.Duration, now, seq uint64) store.Leased {
	next := r.leased(lease)
	if ix != nil {
		// The server stored it later than now: so the index is early, and looks again.
		ix.refresh(identityOf(r.subject), r.seq, &record{subject: r.subject, seq: seq, at: now, state: next, why: r.why, size: r.size})
		ix.published(seq)
	}
	m, damage := r.message()
	return store.Leased{
		Message:  m,
		Lease:    store.Lease{Queue: queue, Entry: entry{identityOf(r.subject), r.position}.String(), Fence: next.fence},
		Position: int64(r.position),
		Lapses:   int(next.lapses),
		Damage:   damage,
	}
}

// settle calls f with each lease's message, and again if that has changed meanwhile.
func (s *Engine) settle(ctx context.Context, leases []store.Lease, f func(l store.Lease, e entry, r *record) error) error {
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
			r, err = s.read(ctx, s.queueSubject(l.Queue)+e.identity)
			if err != nil {
				break
			}
			if !r.holds(e, l.Fence) {
				lost[i] = true
				return
			}
			err = f(l, e, r)
			if !errors.Is(err, errChanged) {
				break
			}
		}
		errs[i] = err
	})
	var lostLeases []store.Lease
	for i, is := range lost {
		if is {
			lostLeases = append(lostLeases, leases[i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return storearg.Lost(lostLeases)
}

func (s *Engine) change(ctx context.Context, l store.Lease, r *record, st state) error {
	seq, err := s.publish(ctx, r.subject, st, r.why, r.body, r.seq)
	if err != nil {
		return err
	}
	if ix := s.opened(l.Queue); ix != nil {
		ix.published(seq)
	}
	return nil
}

// Extend implements [store.Store].
func (s *Engine) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func(ctx context.Context) error {
		if err := storearg.Extend(d); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(leased, d)) })
	})
}

// Release implements [store.Store].
func (s *Engine) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func(ctx context.Context) error {
		if err := storearg.Release(delay); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(waiting, delay)) })
	})
}

// Done implements [store.Store]. Up to 1,000 messages are a transaction, if their leases
// are still valid.
func (s *Engine) Done(ctx context.Context, leases ...store.Lease) error {
	return s.do(ctx, func(ctx context.Context) error { return s.done(ctx, leases) })
}

func (s *Engine) done(ctx context.Context, leases []store.Lease) error {
	var known, rest []store.Lease
	var marks []mark
	for _, l := range leases {
		e, err := parseEntry(l.Entry)
		ix := s.opened(l.Queue)
		if err != nil || ix == nil {
			rest = append(rest, l)
			continue
		}
		if seq, ok := ix.held(e, l.Fence); ok {
			known, marks = append(known, l), append(marks, mark{ix, e, l.Fence, s.queueSubject(l.Queue) + e.identity, seq})
		} else {
			rest = append(rest, l)
		}
	}
	unsure := false
	for len(marks) > 0 {
		n := min(len(marks), maxBatch)
		if err := s.removeAll(ctx, marks[:n]); err != nil {
			rest = append(rest, known[:n]...)
			unsure = unsure || !errors.Is(err, errChanged)
		}
		known, marks = known[n:], marks[n:]
	}
	err := s.settle(ctx, rest, func(l store.Lease, e entry, r *record) error { return s.remove(ctx, l.Queue, r) })
	if lost, ok := errors.AsType[*store.LeaseError](err); ok && unsure {
		return s.notRemoved(ctx, lost.Lost)
	}
	return err
}

// notRemoved returns the error for leases that have not removed their messages, after an
// answer was lost.
func (s *Engine) notRemoved(ctx context.Context, leases []store.Lease) error {
	removed := make([]bool, len(leases))
	errs := make([]error, len(leases))
	parallel.Do(len(leases), func(i int) {
		e, err := parseEntry(leases[i].Entry)
		if err != nil {
			return
		}
		r, err := s.read(ctx, s.queueSubject(leases[i].Queue)+e.identity)
		removed[i], errs[i] = r.isMark(e.position, leases[i].Fence), err
	})
	var lostLeases []store.Lease
	for i, l := range leases {
		if !removed[i] {
			lostLeases = append(lostLeases, l)
		}
	}
	return errors.Join(append(errs, storearg.Lost(lostLeases))...)
}

// mark is a state to replace by a mark.
type mark struct {
	ix *index // nil if the queue has no index
	entry
	fence   uint64
	subject string
	seq     uint64
}

// removeAll removes states in one transaction.
func (s *Engine) removeAll(ctx context.Context, marks []mark) error {
	ms := make([]*nats.Msg, len(marks))
	for i, m := range marks {
		ms[i] = s.message(m.subject, state{kind: removed, position: m.position, fence: m.fence}, "", nil, m.seq)
	}
	if _, err := s.publishAll(ctx, ms); err != nil {
		return err
	}
	for _, m := range marks {
		if m.ix != nil {
			m.ix.refresh(m.identity, m.seq, nil)
		}
	}
	return nil
}

// remove removes a state, or returns errChanged if it is not there. A mark takes its
// place, so that others see it; a full stream may have no room for the mark until the
// state is gone.
func (s *Engine) remove(ctx context.Context, queue string, r *record) error {
	_, err := s.publish(ctx, r.subject, r.then(removed, 0), "", nil, r.seq)
	if errors.Is(err, store.ErrFull) {
		err = s.erase(ctx, r.seq)
		if err == nil {
			_, failed := s.publish(ctx, r.subject, r.then(removed, 0), "", nil, 0)
			if failed != nil && !errors.Is(failed, errChanged) { // errChanged: it was put again
				s.logger.Warn("weir: a message was removed from a full stream, and other processes may count it", "queue", queue, "error", failed)
			}
		}
	}
	if ix := s.opened(queue); ix != nil && err == nil {
		ix.refresh(identityOf(r.subject), r.seq, nil)
	}
	return err
}

func (s *Engine) erase(ctx context.Context, seq uint64) error {
	err := s.stream.DeleteMsg(ctx, seq)
	switch {
	case err == nil:
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
	return fmt.Errorf("jetstream: stream %s: removing message %d: %w", s.name, seq, err)
}

// Amend implements [store.Store].
func (s *Engine) Amend(ctx context.Context, l store.Lease, a store.Amendment) error {
	return s.do(ctx, func(ctx context.Context) error {
		if err := storearg.Amend(a); err != nil {
			return err
		}
		return s.settle(ctx, []store.Lease{l}, func(l store.Lease, _ entry, r *record) error {
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			if a.Provider != nil {
				m, err := r.message()
				if err != nil {
					return err
				}
				m.Meta.Provider = *a.Provider
				r.body, err = body(&m)
				if err != nil {
					return err
				}
			}
			rest := time.Duration(max(1, int64(r.ready())-int64(now)))
			if a.Delay > 0 {
				delay := min(a.Delay, storearg.LongestDelay)
				r.due = now + uint64(delay)
				rest = max(rest, delay)
			}
			return s.change(ctx, l, r, r.then(leased, rest))
		})
	})
}
