package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/verdicts"
	"github.com/weirflow/weir/message"
)

// extend extends the leases of all that is in flight, and of what is not recorded yet.
func (s *Source[T]) extend(ctx context.Context) {
	s.mu.Lock()
	leases := make([]store.Lease, 0, len(s.held))
	for _, h := range s.held {
		leases = append(leases, h.lease)
	}
	s.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	// A message whose lease was lost stays in flight: if it comes again, it joins.
	err := s.store.Extend(ctx, s.lease, leases...)
	if lost, ok := errors.AsType[*store.LeaseError](err); ok {
		s.mu.Lock()
		for _, l := range lost.Lost {
			if h := s.held[l.Entry]; h != nil && h.lease == l {
				s.lose(h)
			}
		}
		s.mu.Unlock()
	}
	if err != nil && ctx.Err() == nil {
		s.logger.Warn("weir: leases could not be extended", "queue", s.queue, "error", err)
	}
}

// lose counts a lease that is lost, once. Called with mu held.
func (s *Source[T]) lose(h *held) {
	if !h.lost {
		h.lost = true
		s.lost++
	}
}

// LeasesLost returns how many leases have ended before their messages were settled, and were given to others or to this source again.
func (s *Source[T]) LeasesLost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// record writes some of the verdicts, in a few calls of the store, and returns whether others are left: in between leases are extended.
// After an error those that were not written are still there.
func (s *Source[T]) record(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	var acked, nacked, rejected []*held
	others := false // with other delays
	for _, h := range s.settled[:min(len(s.settled), maxRecorded)] {
		switch h.verdict.Kind {
		case message.Acked:
			acked = append(acked, h)
		case message.Nacked:
			if len(nacked) == 0 || nacked[0].verdict.Delay == h.verdict.Delay { // one Release
				nacked = append(nacked, h)
			} else {
				others = true
			}
		case message.Rejected:
			rejected = append(rejected, h)
		}
	}
	s.mu.Unlock()
	done := func(leases []store.Lease) error { return s.store.Done(ctx, leases...) }
	if err := s.write(acked, done); err != nil {
		return true, err
	}
	if len(nacked) > 0 {
		s.releasing <- struct{}{}
		err := s.write(nacked, func(leases []store.Lease) error { return s.store.Release(ctx, nacked[0].verdict.Delay, leases...) })
		<-s.releasing
		if err != nil {
			return true, err
		}
		verdicts.Wake(s.again)
	}
	if others { // a dead letter that cannot be stored holds up no delay (law D3)
		return true, nil
	}
	if err := s.write(rejected, func(leases []store.Lease) error { return s.bury(ctx, rejected, leases) }); err != nil {
		return true, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.settled) > 0, nil
}

// write settles messages in the store, and forgets them. Of a lease that was lost, another consumer settles the message, unless
// the message has joined a newer lease meanwhile.
func (s *Source[T]) write(hs []*held, f func([]store.Lease) error) error {
	if len(hs) == 0 {
		return nil
	}
	leases := make([]store.Lease, len(hs))
	s.mu.Lock()
	for i, h := range hs {
		leases[i] = h.lease
	}
	s.mu.Unlock()
	err := f(leases)
	lost, isLost := errors.AsType[*store.LeaseError](err)
	if err != nil && !isLost {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range hs {
		if isLost && slices.Contains(lost.Lost, leases[i]) {
			if h.lease != leases[i] {
				continue
			}
			s.lose(h)
		}
		h.written = true
		delete(s.held, h.lease.Entry)
	}
	s.settled = slices.DeleteFunc(s.settled, func(h *held) bool { return h.written })
	if isLost {
		s.logger.Warn("weir: messages were settled after their leases were lost; they may be delivered again", "queue", s.queue, "messages", len(lost.Lost))
	}
	return nil
}

// bury moves messages to the dead letters.
func (s *Source[T]) bury(ctx context.Context, hs []*held, leases []store.Lease) error {
	moves := make([]store.Move, len(hs))
	for i, h := range hs {
		s.mu.Lock() // a provider may be chosen meanwhile
		m := h.message
		s.mu.Unlock()
		m.Delay = 0
		m.Cause = store.Cause(verdicts.Rejected(&m.Meta, *h.verdict, s.clock.Now()))
		moves[i] = store.Move{Lease: leases[i], Queue: s.dead, Message: m}
	}
	err := moveAll(ctx, s.store, moves...)
	if !errors.Is(err, message.ErrRefused) {
		return err
	}
	var lost []store.Lease
	for _, m := range moves {
		err := s.buryAlone(ctx, m)
		if l, ok := errors.AsType[*store.LeaseError](err); ok {
			lost = append(lost, l.Lost...)
		} else if err != nil {
			return err
		}
	}
	return storearg.Lost(lost)
}

// forGood is the delay of a message that stays in its queue, and is not taken any more.
const forGood = 100 * 365 * 24 * time.Hour

// buryAlone moves a message to the dead letters, where it may not fit: the history of its failure makes it larger.
func (s *Source[T]) buryAlone(ctx context.Context, to store.Move) error {
	where := fmt.Sprintf("queue %q, entry %s", s.queue, to.Lease.Entry)
	whole, err := verdicts.Bury(to.Message.Meta, where, func(meta message.Meta, whole bool) error {
		m := to.Message
		m.Meta = meta
		if whole {
			return moveAll(ctx, s.store, store.Move{Lease: to.Lease, Queue: to.Queue, Message: m})
		}
		m.Payload, m.Schema = nil, nil
		return s.store.Put(ctx, to.Queue, m)
	})
	if err != nil || whole {
		return err
	}
	return s.store.Release(ctx, forGood, to.Lease)
}

// moveAll settles leases and puts a message in another queue for each. A store that is an [Inspector] does so in one
// transaction. With others the messages are put first, so a crash in between doubles and does not lose (law D1); and messages
// whose lease was lost are put as well.
func moveAll(ctx context.Context, s store.Store, moves ...store.Move) error {
	if i, ok := s.(store.Inspector); ok {
		return i.Move(ctx, moves...)
	}
	leases := make([]store.Lease, len(moves))
	for i, m := range moves {
		if err := s.Put(ctx, m.Queue, m.Message); err != nil {
			return err
		}
		leases[i] = m.Lease
	}
	return s.Done(ctx, leases...)
}
