package core

import (
	"context"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// Messages settles the messages that elements are. An element that is a message has an acknowledgement, which is settled once (law D2).
//
//   - What was emitted carries it on: the driver makes messages of the results.
//   - What ended empty, was dropped on purpose or was handed over is acknowledged.
//   - What failed, was abandoned, or was not accepted is nacked.
//
// It hooks in with the first message.
type Messages[IN, OUT any] struct {
	core        *Machine[IN, OUT]
	Some        bool                              // there was one
	next        call.Message                      // that the next element is
	of          side[call.Message]                // without its value; zero: none
	carried     bool                              // what the head of the queue has emitted carries its message on
	settlements fifo.Queue[settlement]            // what Settle is to do
	resumes     func(s *Slot[IN, OUT], err error) // after a source has broken
}

// settlement is a message that Settle is to settle.
type settlement struct {
	message call.Message
	as      message.Settlement
}

// AddMessages adds the feature. broke learns of the panic of a source.
func AddMessages[IN, OUT any](g *Machine[IN, OUT], broke func(err error)) *Messages[IN, OUT] {
	m := &Messages[IN, OUT]{core: g, of: newSide[call.Message](g), resumes: func(_ *Slot[IN, OUT], err error) { broke(err) }}
	g.isBusy = append(g.isBusy, m.MaySettle)
	g.forget = append(g.forget, func() { m.settlements = fifo.Queue[settlement]{} })
	return m
}

// Next says what message the element is that is accepted next.
func (m *Messages[IN, OUT]) Next(msg call.Message) {
	m.next = msg
	if m.Some {
		return
	}
	m.Some = true
	g := m.core
	g.accepted = slices.Insert(g.accepted, 0, func(s *Slot[IN, OUT]) bool {
		if m.next != (call.Message{}) {
			*m.of.ref(s.place) = m.next
			m.next = call.Message{}
		}
		return true
	})
	if g.newAttempt == nil {
		g.newAttempt = func(s *Slot[IN, OUT]) *call.Attempt[OUT] {
			if msg := m.of.get(s.place); msg != (call.Message{}) {
				return call.NewCarrying[OUT](msg)
			}
			return nil
		}
	}
	g.bound = append(g.bound, func(s *Slot[IN, OUT], t *call.Token) { t.Carry(m.of.get(s.place)) })
	if g.describe == nil {
		g.describe = m.Context
	}
	g.ended = append(g.ended, m.ended)
	g.giveBack = func(s *Slot[IN, OUT], why error, wait time.Duration) (taken bool) {
		return m.settleLater(m.of.get(s.place), message.Settlement{Kind: message.Nacked, Delay: wait, Err: why})
	}
	g.left = append(g.left, func() { m.carried = false })
}

// Head returns the message that the head of the queue is; zero if it is none. There must be a head.
func (m *Messages[IN, OUT]) Head() call.Message { return m.of.get(m.core.Queue.Head().Value.place) }

// Context returns the operator's context, which knows the message that an element is.
func (m *Messages[IN, OUT]) Context(s *Slot[IN, OUT]) context.Context {
	if msg := m.of.get(s.place); msg != (call.Message{}) {
		return call.WithMessage(m.core.Host.Values, msg)
	}
	return m.core.Host.Values
}

// Carried says that what the head of the queue emits carries its message on from now on: it is not settled here.
func (m *Messages[IN, OUT]) Carried() { m.carried = m.Head() != (call.Message{}) }

// isCarried reports whether what s has emitted carries its message on.
func (m *Messages[IN, OUT]) isCarried(s *Slot[IN, OUT]) bool {
	return m.carried && s.entry == m.core.Queue.Head()
}

// ComesAgain reports whether an element that Abandon has returned, and that has not ended, is a message that its source delivers again.
func (m *Messages[IN, OUT]) ComesAgain(s *Slot[IN, OUT]) bool {
	return m.of.get(s.place).Pending() || m.isCarried(s)
}

// ended settles the message that an element is, unless what was made of it carries it on.
func (m *Messages[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	msg := m.of.get(s.place)
	if !msg.Pending() || m.isCarried(s) {
		return
	}
	switch how {
	case observe.Emitted:
	case observe.Empty:
		m.settleLater(msg, message.Settlement{Kind: message.Acked})
	case observe.HandedOver, observe.Dropped:
		v := message.Settlement{Kind: message.Acked, Err: s.err}
		if r := m.core.reasons.get(s.place).last; r.IsRejection() { // a worker learns that the service has answered
			v.Err = predicates.WithReason(s.err, r)
		}
		m.settleLater(msg, v)
	default:
		m.GiveBack(msg)
	}
}

// Reject has the message that an element is settled for good: its sink can never take it. It reports whether it is one that
// waits for that. The first settlement counts (law D2).
func (m *Messages[IN, OUT]) Reject(s *Slot[IN, OUT], unknown bool) bool {
	return m.settleLater(m.of.get(s.place), message.Settlement{Kind: message.Rejected, Err: s.err, UnsafeToRepeat: unknown})
}

// GiveBack has Settle nack a message, unless it is settled.
func (m *Messages[IN, OUT]) GiveBack(msg call.Message) {
	m.settleLater(msg, message.Settlement{Kind: message.Nacked})
}

// settleLater queues a settlement for Settle. waited is false if the message is settled already or
// belongs to a control element.
func (m *Messages[IN, OUT]) settleLater(msg call.Message, v message.Settlement) (waited bool) {
	if waited = msg.Pending(); waited {
		m.settlements.Push(settlement{msg, v})
	}
	return waited
}

// MaySettle reports whether Settle has something to do.
func (m *Messages[IN, OUT]) MaySettle() bool { return m.settlements.Len() > 0 }

// Settle settles the messages whose elements have ended, which is code of their sources. The driver calls it once a turn,
// and after the end.
func (m *Messages[IN, OUT]) Settle() {
	for m.settlements.Len() > 0 {
		m.core.calling(nil, m.resumes)
		for m.settlements.Len() > 0 {
			s := m.settlements.Pop()
			s.message.Settle(s.as)
		}
		m.core.user.after = nil
	}
}
