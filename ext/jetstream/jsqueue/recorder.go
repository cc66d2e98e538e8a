package jsqueue

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/verdicts"
)

const (
	maxRecorded = 1000 // verdicts that are recorded at once
	confirm     = 5 * time.Second

	// restartSlack is how much earlier a delay may end at a server that has restarted: it keeps the times in whole seconds.
	restartSlack = time.Second
)

// extend extends the leases of what is in flight, and of what is not recorded yet.
func (s *Source[T]) extend(context.Context) {
	s.mu.Lock()
	var ms []jetstream.Msg
	now := s.clock.Now()
	for _, h := range s.held {
		if s.lost(h, now) {
			continue
		}
		if h.verdict == nil || h.verdict.Kind != delivery.Nacked { // one that waits must not have its delay replaced
			ms = append(ms, h.msg)
			h.leased = now
		}
	}
	s.mu.Unlock()
	for _, m := range ms {
		if err := m.InProgress(); err != nil {
			s.logger.Warn("weir: leases could not be extended", "consumer", s.name, "error", err)
			return
		}
	}
}

// lost says that the lease of a message has ended, as after a stop of the process. Another worker may have it, and may have nacked it
// with a delay, which the server would replace by what this one sends (laws D3, P1). The server delivers it again without that. Called
// with mu held.
func (s *Source[T]) lost(h *held, now time.Time) bool { return now.Sub(h.leased) >= s.lease }

// recordAll sends all verdicts there are. After an error those that were not confirmed are still there.
func (s *Source[T]) recordAll(ctx context.Context) error {
	for {
		s.mu.Lock()
		batch := slices.Clone(s.settled[:min(len(s.settled), maxRecorded)])
		s.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		errs := make([]error, len(batch))
		parallel.Do(len(batch), func(i int) { errs[i] = s.recordOne(ctx, batch[i]) })
		s.mu.Lock()
		s.settled = slices.DeleteFunc(s.settled, func(h *held) bool { return s.held[h.seq] != h })
		s.mu.Unlock()
		for _, err := range errs {
			if err != nil {
				return fmt.Errorf("jsqueue: consumer %s: %w", s.name, err)
			}
		}
	}
}

// recordOne sends a verdict and waits until the server has it (law D1: what is rejected is safe before).
func (s *Source[T]) recordOne(ctx context.Context, h *held) error {
	answer := []byte("+ACK")
	var due time.Time
	switch v := h.verdict; v.Kind {
	case delivery.Acked:
	case delivery.Rejected:
		if err := s.bury(ctx, h); err != nil {
			return err
		}
		answer = []byte("+TERM")
	case delivery.Nacked:
		answer = []byte("-NAK")
		if v.Delay > 0 {
			due = h.at.Add(v.Delay)
			rest := max(0, due.Sub(s.clock.Now())) + restartSlack
			answer = strconv.AppendInt([]byte(`-NAK {"delay": `), int64(rest), 10)
			answer = append(answer, '}')
		}
	}
	// It may be delivered as soon as the server has the verdict: from here on that is no redelivery of what is in flight.
	s.mu.Lock()
	msg := h.msg
	if h.verdict.Kind == delivery.Nacked {
		delete(s.held, h.seq)
		if s.lost(h, s.clock.Now()) {
			s.mu.Unlock()
			return nil
		}
		if !due.IsZero() {
			s.delay(h.seq, msg, due)
		}
	}
	s.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, confirm)
	defer cancel()
	_, err := s.js.Conn().RequestWithContext(asking, msg.Reply(), answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && s.held[h.seq] == h:
		delete(s.held, h.seq)
	case err != nil && s.held[h.seq] == nil:
		s.held[h.seq] = h // still ours to settle
		if d := s.delayed[h.seq]; d != nil {
			d.timer.Stop()
			delete(s.delayed, h.seq)
		}
	}
	return err
}

// delay asks for a message when its delay is over: the server would deliver it a second later. Called with mu held.
func (s *Source[T]) delay(seq uint64, msg jetstream.Msg, due time.Time) {
	d := &delayed{due: due, msg: msg}
	d.timer = s.clock.AfterFunc(max(0, due.Sub(s.clock.Now())), func() {
		s.mu.Lock()
		mine := s.delayed[seq] == d && s.recorder.Open.Err() == nil
		if mine {
			delete(s.delayed, seq)
		}
		late := s.clock.Now().Sub(due)
		msg := d.msg
		s.mu.Unlock()
		if mine && late < restartSlack/2 { // else the server has delivered it, perhaps
			_ = s.js.Conn().Publish(msg.Reply(), []byte("-NAK"))
		}
	})
	s.delayed[seq] = d
}

// bury puts a message into the dead letters.
func (s *Source[T]) bury(ctx context.Context, h *held) error {
	m := store.Message{Meta: h.meta, Payload: bytes.Clone(h.raw), Schema: h.schema, Cause: store.Permanent}
	if verdicts.Rejected(&m.Meta, h.verdict.Err, s.clock.Now()) {
		m.Cause = store.Undecodable
	}
	s.logger.Warn("weir: a message is given up", "consumer", s.name, "id", m.Meta.ID, "cause", m.Cause, "dead letters", s.queue, "error", m.Meta.LastError)
	if s.dead == nil {
		return nil
	}
	return s.dead.Put(ctx, s.queue, m)
}

// giveBack sends the verdicts there are, and gives back the rest.
func (s *Source[T]) giveBack(ctx context.Context) error {
	if err := s.recordAll(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	for _, d := range s.delayed {
		d.timer.Stop() // the server has the delay
	}
	clear(s.delayed)
	rest := make([]*held, 0, len(s.held))
	for _, h := range s.held {
		if !s.lost(h, s.clock.Now()) {
			rest = append(rest, h)
		}
	}
	s.mu.Unlock()
	errs := make([]error, len(rest))
	parallel.Do(len(rest), func(i int) {
		asking, cancel := context.WithTimeout(ctx, confirm)
		defer cancel()
		_, errs[i] = s.js.Conn().RequestWithContext(asking, rest[i].msg.Reply(), []byte("-NAK"))
	})
	if err := firstOf(errs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.held)
	return nil
}
