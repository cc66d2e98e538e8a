package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

const (
	firstRetry = 10 * time.Millisecond // after a verdict could not be recorded
	lastRetry  = time.Second
)

// record writes verdicts and extends leases, until the source is closed.
func (s *Source[T]) record() {
	defer close(s.ended)
	extend := s.clock.Ticker(s.lease / 3)
	defer extend.Stop()
	retry := s.clock.Timer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	wait := firstRetry
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.kick:
		case <-retry.C:
		case <-extend.C:
			s.extend()
		}
		err := s.recordAll(s.ctx)
		if err == nil || s.ctx.Err() != nil {
			wait = firstRetry
			continue
		}
		s.logger.Warn("weir: verdicts on messages could not be recorded and are tried again", "queue", s.queue, "error", err)
		s.mu.Lock()
		s.failure = err
		s.mu.Unlock()
		retry.Reset(wait)
		wait = min(2*wait, lastRetry)
	}
}

// extend extends the leases of all that is in flight, and of what is not recorded yet.
func (s *Source[T]) extend() {
	s.mu.Lock()
	leases := make([]Lease, 0, len(s.held))
	for _, h := range s.held {
		leases = append(leases, h.lease)
	}
	s.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	// A message whose lease was lost stays in flight: if it comes again, it joins.
	if err := s.store.Extend(s.ctx, s.lease, leases...); err != nil && s.ctx.Err() == nil {
		s.logger.Warn("weir: leases could not be extended", "queue", s.queue, "error", err)
	}
}

// recordAll writes all verdicts there are. After an error those that were not written are still there.
func (s *Source[T]) recordAll(ctx context.Context) error {
	for {
		s.mu.Lock()
		batch := slices.Clone(s.settled[:min(len(s.settled), maxRecorded)])
		s.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		if err := s.recordBatch(ctx, batch); err != nil {
			return err
		}
	}
}

func (s *Source[T]) recordBatch(ctx context.Context, batch []*held) error {
	var acked, rejected []*held
	nacked := map[time.Duration][]*held{}
	for _, h := range batch {
		switch h.verdict.Kind {
		case delivery.Acked:
			acked = append(acked, h)
		case delivery.Nacked:
			nacked[h.verdict.Delay] = append(nacked[h.verdict.Delay], h)
		case delivery.Rejected:
			rejected = append(rejected, h)
		}
	}
	done := func(leases []Lease) error { return s.store.Done(ctx, leases...) }
	if err := s.write(acked, done); err != nil {
		return err
	}
	for delay, hs := range nacked {
		s.releasing <- struct{}{}
		err := s.write(hs, func(leases []Lease) error { return s.store.Release(ctx, delay, leases...) })
		<-s.releasing
		if err != nil {
			return err
		}
		wake(s.again)
	}
	return s.write(rejected, func(leases []Lease) error { return s.bury(ctx, rejected, leases) })
}

// write settles messages in the store, and forgets them. Of a lease that was lost, another consumer settles the message, unless
// the message has joined a newer lease meanwhile.
func (s *Source[T]) write(hs []*held, f func([]Lease) error) error {
	if len(hs) == 0 {
		return nil
	}
	leases := make([]Lease, len(hs))
	s.mu.Lock()
	for i, h := range hs {
		leases[i] = h.lease
	}
	s.mu.Unlock()
	err := f(leases)
	lost, isLost := errors.AsType[*LeaseError](err)
	if err != nil && !isLost {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range hs {
		if isLost && h.lease != leases[i] && slices.Contains(lost.Lost, leases[i]) {
			continue
		}
		h.written = true
		delete(s.held, h.lease.Entry)
	}
	s.settled = slices.DeleteFunc(s.settled, func(h *held) bool { return h.written })
	if isLost {
		s.logger.Warn("weir: messages were settled after their leases were lost; they are delivered again", "queue", s.queue, "messages", len(lost.Lost))
	}
	return nil
}

// bury moves messages to the dead letters.
func (s *Source[T]) bury(ctx context.Context, hs []*held, leases []Lease) error {
	moves := make([]Move, len(hs))
	for i, h := range hs {
		m := h.message
		m.Delay = 0
		err := h.verdict.Err
		if _, undecodable := errors.AsType[*decodeError](err); undecodable {
			m.Meta.Visit-- // there was none
			m.Cause = Undecodable
		} else {
			m.Cause = Permanent
			m.Meta.LastFailure = s.clock.Now()
			if m.Meta.FirstFailure.IsZero() {
				m.Meta.FirstFailure = m.Meta.LastFailure
			}
		}
		if err != nil {
			m.Meta.LastError = errorText(err)
		}
		moves[i] = Move{Lease: leases[i], Queue: s.dead, Message: m}
	}
	return MoveAll(ctx, s.store, moves...)
}

// MoveAll settles leases and puts a message in another queue for each. A store that is an [Inspector] does so in one
// transaction. With others the messages are put first, so a crash in between doubles and does not lose (law D1); and messages
// whose lease was lost are put as well.
func MoveAll(ctx context.Context, s Store, moves ...Move) error {
	if i, ok := s.(Inspector); ok {
		return i.Move(ctx, moves...)
	}
	leases := make([]Lease, len(moves))
	for i, m := range moves {
		if err := s.Put(ctx, m.Queue, m.Message); err != nil {
			return err
		}
		leases[i] = m.Lease
	}
	return s.Done(ctx, leases...)
}

// errorText returns the message of an error of user code, which may panic.
func errorText(err error) (text string) {
	if failed := quietly(func() error {
		text = err.Error()
		return nil
	}); failed != nil {
		return failed.Error()
	}
	return text
}

// quietly calls user code and makes an error of a panic.
func quietly(f func() error) error {
	return guard.Call(f, func(recovered any) error { return panics.New("store", recovered) })
}
