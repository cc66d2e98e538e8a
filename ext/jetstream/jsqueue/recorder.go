package jsqueue

import (
	"bytes"
	"cmp"
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
		if !h.settled || h.verdict.Kind != delivery.Nacked { // one that waits must not have its delay replaced
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
		err := s.recordSome(ctx, batch)
		s.mu.Lock()
		s.settled = slices.DeleteFunc(s.settled, func(h *held) bool { return s.held[h.seq] != h })
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("jsqueue: consumer %s: %w", s.name, err)
		}
	}
}

// recordSome sends verdicts. What is rejected goes into the dead letters before (law D1), and after the others, which do not wait for it.
func (s *Source[T]) recordSome(ctx context.Context, hs []*held) error {
	var others, rejected []*held
	for _, h := range hs {
		if h.verdict.Kind == delivery.Rejected {
			rejected = append(rejected, h)
		} else {
			others = append(others, h)
		}
	}
	err := s.send(ctx, others)
	errs := make([]error, len(rejected))
	parallel.Do(len(rejected), func(i int) { errs[i] = s.bury(ctx, rejected[i]) })
	buried := rejected[:0]
	for i, h := range rejected {
		if errs[i] == nil {
			buried = append(buried, h)
		}
		err = cmp.Or(err, errs[i])
	}
	return cmp.Or(err, s.send(ctx, buried))
}

// send sends verdicts, and waits until the server has them.
func (s *Source[T]) send(ctx context.Context, hs []*held) (err error) {
	if len(hs) == 0 {
		return nil
	}
	sent := make([]*held, 0, len(hs))
	rs := make([]request, 0, len(hs))
	s.mu.Lock()
	now := s.clock.Now()
	for _, h := range hs {
		if answer, ok := s.release(h, now); ok {
			sent, rs = append(sent, h), append(rs, request{subject: h.msg.Reply(), data: answer})
		}
	}
	s.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, confirm)
	defer cancel()
	s.asker.send(s.js.Conn(), rs)
	s.mu.Lock()
	for _, h := range sent {
		if d := s.delayed[h.seq]; d != nil && d.timer == nil { // not before the server could have the delay
			s.start(h.seq, d)
		}
	}
	s.mu.Unlock()
	s.asker.wait(asking, rs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range sent {
		s.sent(h, rs[i].err)
		err = cmp.Or(err, rs[i].err)
	}
	return err
}

var (
	ackData  = []byte("+ACK")
	nakData  = []byte("-NAK")
	termData = []byte("+TERM")
)

// release returns what to send for a verdict; ok is false if the message is not this source's any more. Called with mu held.
func (s *Source[T]) release(h *held, now time.Time) (data []byte, ok bool) {
	v := h.verdict
	switch v.Kind {
	case delivery.Acked:
		return ackData, true
	case delivery.Rejected:
		return termData, true
	case delivery.Nacked:
	}
	// It may be delivered as soon as the server has the verdict: from here on that is no redelivery of what is in flight.
	delete(s.held, h.seq)
	if s.lost(h, now) {
		return nil, false
	}
	if v.Delay <= 0 {
		return nakData, true
	}
	due := h.at.Add(v.Delay)
	s.delayed[h.seq] = &delayed{due: due, msg: h.msg}
	data = strconv.AppendInt([]byte(`-NAK {"delay": `), int64(max(0, due.Sub(now))+restartSlack), 10)
	return append(data, '}'), true
}

// sent notes whether the server has a verdict. Called with mu held.
func (s *Source[T]) sent(h *held, err error) {
	switch {
	case err == nil && s.held[h.seq] == h:
		delete(s.held, h.seq)
		if s.taking > 0 || len(s.buffer) > 0 {
			s.gone[h.seq] = true
		}
	case err != nil && s.held[h.seq] == nil:
		s.held[h.seq] = h // still ours to settle
		if d := s.delayed[h.seq]; d != nil {
			d.stop()
			delete(s.delayed, h.seq)
		}
	}
}

// start asks for a message when its delay is over: the server would deliver it a second later. Called with mu held.
func (s *Source[T]) start(seq uint64, d *delayed) {
	d.timer = s.clock.AfterFunc(max(0, d.due.Sub(s.clock.Now())), func() {
		s.mu.Lock()
		mine := s.delayed[seq] == d && s.recorder.Open.Err() == nil
		if mine {
			delete(s.delayed, seq)
		}
		late := s.clock.Now().Sub(d.due)
		msg := d.msg
		s.mu.Unlock()
		if mine && late < restartSlack/2 { // else the server has delivered it, perhaps
			_ = s.js.Conn().Publish(msg.Reply(), nakData)
		}
	})
}

// stop ends the timer of a message that does not wait any more.
func (d *delayed) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
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
	defer s.asker.end()
	if err := s.recordAll(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	for _, d := range s.delayed {
		d.stop() // the server has the delay
	}
	clear(s.delayed)
	var rest []request
	for _, h := range s.held {
		if !s.lost(h, s.clock.Now()) {
			rest = append(rest, request{subject: h.msg.Reply(), data: nakData})
		}
	}
	s.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, confirm)
	defer cancel()
	s.asker.send(s.js.Conn(), rest)
	s.asker.wait(asking, rest)
	for _, r := range rest {
		if r.err != nil {
			return fmt.Errorf("jsqueue: consumer %s: giving back a message: %w", s.name, r.err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.held)
	return nil
}
