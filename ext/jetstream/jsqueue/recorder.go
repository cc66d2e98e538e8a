package jsqueue

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/verdicts"
)

const (
	maxRecorded = 1000 // verdicts that are recorded at once
	confirm     = 5 * time.Second
	minConfirm  = 500 * time.Millisecond

	// forGood is the delay of a message that stays in its stream, and is not delivered any more.
	forGood = 100 * 365 * 24 * time.Hour

	// restartSlack is how much earlier a delay may end at a server that has restarted: it keeps the times in whole seconds.
	restartSlack = time.Second
)

// extend extends the leases of what is in flight, and of what is not recorded yet. Only those that the server has confirmed are: see lost.
func (s *Source[T]) extend(ctx context.Context) {
	var hs []*held
	var rs []request
	s.mu.Lock()
	now := s.clock.Now()
	for _, h := range s.held {
		if s.lost(h, now) {
			continue
		}
		if !h.settled || h.verdict.Kind != delivery.Nacked { // one that waits must not have its delay replaced
			hs, rs = append(hs, h), append(rs, request{subject: h.msg.Reply(), data: progressData})
		}
	}
	s.mu.Unlock()
	if len(hs) == 0 {
		return
	}
	s.ask(ctx, rs, nil)
	var failed error
	s.mu.Lock()
	for i, h := range hs {
		if failed = cmp.Or(failed, rs[i].err); rs[i].err == nil && h.leased.Before(now) {
			h.leased = now
		}
	}
	s.mu.Unlock()
	if failed != nil {
		s.logger.Warn("weir: leases could not be extended", "consumer", s.name, "error", failed)
	}
}

// ask sends requests, calls sent, and waits for the answers, not so long that leases end meanwhile.
func (s *Source[T]) ask(ctx context.Context, rs []request, sent func()) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	s.asker.send(s.js.Conn(), rs)
	if sent != nil {
		sent()
	}
	s.asker.wait(ctx, rs)
}

func (s *Source[T]) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(minConfirm, min(confirm, s.lease/3)))
}

// connected waits for a connection that is broken, as long as for an answer: which verdicts can be sent is decided after that.
func (s *Source[T]) connected(ctx context.Context) error {
	nc := s.js.Conn()
	if nc.IsConnected() {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	changed := nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer nc.RemoveStatusListener(changed)
	for !nc.IsConnected() {
		if nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nats.ErrDisconnected
		}
	}
	return nil
}

// lost reports whether the lease of a message has ended, as after a stop of the process or without a connection. Another worker may
// have the message and may have nacked it with a delay. What this worker sends would replace that delay (laws D3, P1), so it sends
// nothing: the server delivers the message again by itself. Called with mu held.
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
		err := s.connected(ctx)
		if err == nil {
			err = s.send(ctx, batch)
		}
		s.mu.Lock()
		s.settled = slices.DeleteFunc(s.settled, func(h *held) bool { return s.held[h.seq] != h })
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("jsqueue: consumer %s: %w", s.name, err)
		}
	}
}

// buryAll puts what is rejected into the dead letters, and lets the recorder have it then (law D1). They may take long, which must not
// hold up leases and other verdicts (law D4).
func (s *Source[T]) buryAll(ctx context.Context) error {
	s.mu.Lock()
	hs := slices.Clone(s.rejected)
	s.mu.Unlock()
	errs := make([]error, len(hs))
	parallel.Do(len(hs), func(i int) {
		if errs[i] = s.bury(ctx, hs[i]); errs[i] != nil {
			return
		}
		s.mu.Lock()
		s.rejected = slices.DeleteFunc(s.rejected, func(h *held) bool { return h == hs[i] })
		s.settled = append(s.settled, hs[i])
		s.mu.Unlock()
		s.recorder.Kick()
	})
	if err := cmp.Or(errs...); err != nil {
		return fmt.Errorf("jsqueue: consumer %s: dead letters %q: %w", s.name, s.queue, err)
	}
	return nil
}

// send sends verdicts, and waits until the server has them.
func (s *Source[T]) send(ctx context.Context, hs []*held) (err error) {
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
	if len(sent) == 0 {
		return nil
	}
	s.ask(ctx, rs, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range sent {
			if d := s.delayed[h.seq]; d != nil && d.timer == nil { // not before the server could have the delay
				s.start(h.seq, d)
			}
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range sent {
		s.sent(h, &rs[i])
		err = cmp.Or(err, rs[i].err)
	}
	return err
}

var (
	ackData      = []byte("+ACK")
	nakData      = []byte("-NAK")
	termData     = []byte("+TERM")
	progressData = []byte("+WPI")
)

// release returns what to send for a verdict; ok is false if the message is not this source's any more. Called with mu held.
func (s *Source[T]) release(h *held, now time.Time) (data []byte, ok bool) {
	v := h.verdict
	switch v.Kind {
	case delivery.Acked:
		return ackData, true
	case delivery.Rejected:
		if h.parked {
			return delayData(forGood), true
		}
		return termData, true
	case delivery.Nacked:
	}
	// It may be delivered as soon as the server has the verdict: from here on that is no redelivery of what is in flight.
	delete(s.held, h.seq)
	s.noteGivenBack(h.seq)
	due := h.at.Add(v.Delay)
	if s.lost(h, now) || h.unsure && !now.Before(due) { // the server delivers it again without that
		return nil, false
	}
	if v.Delay <= 0 {
		return nakData, true
	}
	s.delayed[h.seq] = &delayed{due: due, msg: h.msg}
	return delayData(max(0, due.Sub(now)) + restartSlack), true
}

func delayData(d time.Duration) []byte {
	return append(strconv.AppendInt([]byte(`-NAK {"delay": `), int64(d), 10), '}')
}

// sent notes whether the server has a verdict. Called with mu held.
func (s *Source[T]) sent(h *held, r *request) {
	h.unsure = h.unsure || r.sent
	switch {
	case r.err == nil && s.held[h.seq] == h:
		delete(s.held, h.seq)
		delete(s.givenBack, h.seq)
		if s.taking > 0 || len(s.buffer) > 0 {
			s.gone[h.seq] = true
		}
	case r.err != nil && s.held[h.seq] == nil:
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
		if mine && late < restartSlack/2 && s.js.Conn().IsConnected() { // else the server has delivered it, perhaps, when this comes
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
	m := store.Message{Meta: h.meta, Payload: bytes.Clone(h.raw), Schema: h.schema}
	m.Cause = store.Cause(verdicts.Rejected(&m.Meta, h.verdict, s.clock.Now()))
	s.logger.Warn("weir: a message is given up", "consumer", s.name, "id", m.Meta.ID, "cause", m.Cause, "dead letters", s.queue, "error", m.Meta.LastError)
	if s.dead == nil {
		return nil
	}
	where := fmt.Sprintf("stream %s, sequence number %d", s.stream, h.seq)
	whole, err := verdicts.Bury(m.Meta, where, func(meta delivery.Meta, whole bool) error {
		m := m
		if m.Meta = meta; !whole {
			m.Payload, m.Schema = nil, nil
		}
		return s.dead.Put(ctx, s.queue, m)
	})
	if err == nil && !whole {
		stays := s.keeps(ctx)
		s.mu.Lock()
		h.parked = !stays
		s.mu.Unlock()
	}
	return err
}

// keeps reports whether the stream keeps a message that was terminated.
func (s *Source[T]) keeps(ctx context.Context) bool {
	stream, err := s.js.Stream(ctx, s.stream)
	return err == nil && stream.CachedInfo().Config.Retention == jetstream.LimitsPolicy
}

// giveBack sends the verdicts there are, gives back the rest, and waits for dead letters.
func (s *Source[T]) giveBack(ctx context.Context) error {
	defer s.asker.end()
	if err := s.recordAll(ctx); err != nil {
		return err
	}
	var hs []*held
	var rest []request
	s.mu.Lock()
	for _, d := range s.delayed {
		d.stop() // the server has the delay
	}
	clear(s.delayed)
	for seq, h := range s.held {
		switch {
		case h.settled: // and to be put into the dead letters
		case h.unsure || s.lost(h, s.clock.Now()):
			delete(s.held, seq)
		default:
			hs, rest = append(hs, h), append(rest, request{subject: h.msg.Reply(), data: nakData})
		}
	}
	s.mu.Unlock()
	s.ask(ctx, rest, nil)
	var failed error
	s.mu.Lock()
	for i, h := range hs {
		if h.unsure = rest[i].sent; rest[i].err == nil {
			delete(s.held, h.seq)
		}
		failed = cmp.Or(failed, rest[i].err)
	}
	s.mu.Unlock()
	if failed != nil {
		return fmt.Errorf("jsqueue: consumer %s: giving back a message: %w", s.name, failed)
	}
	return s.burier.Close(ctx, func(ctx context.Context) error {
		if err := s.buryAll(ctx); err != nil {
			return err
		}
		return s.recordAll(ctx)
	})
}
