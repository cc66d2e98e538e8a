package core

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// What an element is in the hands of: an element that is a message has an acknowledgement, which is settled once (law D2).
//
//   - What was emitted carries it on: the driver makes messages of the results.
//   - The core settles it where nothing leaves. Acknowledged: what ended empty, was dropped on purpose or was handed over. Nacked: what
//     failed, was abandoned, or was not accepted.

// settlement is a message that SettleMessages is to settle.
type settlement struct {
	message call.Message
	verdict message.Verdict
}

// message returns the message that an element is, without its value; zero if it is none.
func (s *Slot[IN, OUT]) message() call.Message {
	if r := s.rare(); r != nil {
		return r.message
	}
	return call.Message{}
}

// ride makes an element that was put into its slot a message.
func (g *Machine[IN, OUT]) ride(s *Slot[IN, OUT], m call.Message) {
	if m == (call.Message{}) {
		return
	}
	g.more(s).message = m
}

// Carried says that what the head of the queue emits carries its message on from now on: the core does not settle it.
func (g *Machine[IN, OUT]) Carried() {
	if s := g.head(); s.message() != (call.Message{}) {
		s.retry |= carried
	}
}

// ComesAgain reports whether an element that Abandon has returned, and that has not ended, is a message that its source delivers again.
func (g *Machine[IN, OUT]) ComesAgain(s *Slot[IN, OUT]) bool {
	return s.message().Pending() || s.phase == done && s.retry&carried != 0
}

// settleEnded settles the message that an element is, unless what was made of it carries it on.
func (g *Machine[IN, OUT]) settleEnded(s *Slot[IN, OUT], how observe.EndKind) {
	m := s.message()
	if !m.Pending() || s.phase == done && s.retry&carried != 0 {
		return
	}
	switch how {
	case observe.Emitted:
	case observe.Empty:
		g.settlements.Push(settlement{m, message.Verdict{Kind: message.Acked}})
	case observe.HandedOver, observe.Dropped:
		v := message.Verdict{Kind: message.Acked, Err: s.err}
		if r := s.reason(); r.IsRejection() { // a worker learns that the service has answered
			v.Err = predicates.WithReason(s.err, r)
		}
		g.settlements.Push(settlement{m, v})
	default:
		g.GiveBack(m)
	}
}

// GiveBack has SettleMessages nack a message, unless it is settled.
func (g *Machine[IN, OUT]) GiveBack(m call.Message) {
	if m.Pending() {
		g.settlements.Push(settlement{m, message.Verdict{Kind: message.Nacked}})
	}
}

// MaySettle reports whether SettleMessages has something to do.
func (g *Machine[IN, OUT]) MaySettle() bool { return g.settlements.Len() > 0 }

// SettleMessages settles the messages whose elements have ended, which is code of their sources. The driver calls it once a turn,
// and after the end.
func (g *Machine[IN, OUT]) SettleMessages() {
	for g.settlements.Len() > 0 {
		g.calling(callSettle, nil)
		for g.settlements.Len() > 0 {
			s := g.settlements.Pop()
			s.message.Settle(s.verdict)
		}
		g.called()
	}
}
