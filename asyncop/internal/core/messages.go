package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/message"
)

// Messages settles the messages of elements, each once (law D2). The settlement depends
// on the end of the element:
//
//	end of the element                           settlement of its message
//	its results were emitted                     the results carry the message on
//	without results                              Done
//	dropped or handed over                       HandedOver
//	its sink can never take it                   Rejected
//	failed the run                               Failed
//	abandoned or not accepted                    Released
//	purged, or snoozed by its call               Released
//	waited for its backend without a visit,      Released
//	until its time ran out or its tenant was down
//
// The driver makes messages of results that carry a message on. An element was not
// visited if it was not called, or if all its calls were throttled: see
// Machine.releaseUnvisited.
type Messages[IN, OUT any] struct {
	core *Machine[IN, OUT]
	// mayBeIdempotent is false if no call is idempotent: the policy does not declare any,
	// and IN lacks a method Idempotent.
	mayBeIdempotent bool

	Seen        bool                  // there was a message; before, messages are skipped
	next        call.Message          // of the next accepted element
	attached    perSlot[call.Message] // the messages of elements, without their values
	carried     bool                  // see NoteCarried
	settlements fifo.Queue[settlement]
}

type settlement struct {
	message call.Message
	as      message.Settlement
}

func (m *Messages[IN, OUT]) forget() { m.settlements = fifo.Queue[settlement]{} }

// SetNext sets the message of the next accepted element.
func (m *Messages[IN, OUT]) SetNext(msg call.Message) {
	m.Seen = true
	m.next = msg
}

// attach sets the message of s, the newest element.
func (m *Messages[IN, OUT]) attach(s *Slot[IN, OUT]) {
	if m.next != (call.Message{}) {
		*m.attached.ref(s.index) = m.next
		m.next = call.Message{}
	}
}

func (m *Messages[IN, OUT]) isPurged(s *Slot[IN, OUT]) bool {
	return m.attached.get(s.index).IsPurged()
}

func (m *Messages[IN, OUT]) key(s *Slot[IN, OUT]) string {
	return m.attached.get(s.index).Meta().Key
}

func (m *Messages[IN, OUT]) isPending(s *Slot[IN, OUT]) bool {
	return m.attached.get(s.index).Pending()
}

// releaseAfter releases the message of s for redelivery after wait, and reports whether
// it was pending.
func (m *Messages[IN, OUT]) releaseAfter(s *Slot[IN, OUT], why error, wait time.Duration) bool {
	return m.settle(m.attached.get(s.index), message.Settlement{Kind: message.Released, Delay: wait, Err: why})
}

// Head returns the message of the head of the queue, or zero.
func (m *Messages[IN, OUT]) Head() call.Message {
	return m.attached.get(m.core.Queue.Head().Value.index)
}

// PrepareHead returns the message of the head, whose results leave next, or zero. A sink
// that can never take a result makes a dead letter of the message. So PrepareHead notes
// in the message whether the call is unsafe to repeat.
func (m *Messages[IN, OUT]) PrepareHead() call.Message {
	s := m.core.Queue.Head().Value
	msg := m.attached.get(s.index)
	if s.attempts > 0 && msg.Pending() && !m.isIdempotent(s.in) {
		message.NoteUnsafeToRepeat(msg)
	}
	return msg
}

// isIdempotent reports whether the call for in may happen twice. If user code panics, it
// returns false.
func (m *Messages[IN, OUT]) isIdempotent(in IN) (isIdempotent bool) {
	if !m.mayBeIdempotent {
		return false
	}
	m.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			_ = m.core.noteBroken("Idempotent", recover())
		}
	}()
	isIdempotent = m.core.Policy.IsIdempotent(in)
	returned = true
	return isIdempotent
}

// Context returns the operator's context with the message of s.
func (m *Messages[IN, OUT]) Context(s *Slot[IN, OUT]) context.Context {
	if msg := m.attached.get(s.index); msg != (call.Message{}) {
		return call.WithMessage(m.core.Host.Values, msg)
	}
	return m.core.Host.Values
}

// NoteCarried notes that one of several results of the head was emitted with a part of
// its message. From then on the parts settle the message, even if the run ends first.
func (m *Messages[IN, OUT]) NoteCarried() { m.carried = m.Head() != (call.Message{}) }

func (m *Messages[IN, OUT]) isCarried(s *Slot[IN, OUT]) bool {
	return m.carried && s.entry == m.core.Queue.Head()
}

// ComesAgain reports whether the source redelivers the message of s, which Abandon has
// returned.
func (m *Messages[IN, OUT]) ComesAgain(s *Slot[IN, OUT]) bool {
	return m.attached.get(s.index).Pending() || m.isCarried(s)
}

// ended settles the message of s, unless results carry it on.
func (m *Messages[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	msg := m.attached.get(s.index)
	if !msg.Pending() || m.isCarried(s) {
		return
	}
	switch how {
	case observe.Emitted:
	case observe.Empty:
		m.settle(msg, message.Settlement{Kind: message.Done})
	case observe.HandedOver, observe.Dropped:
		m.settle(msg, m.failure(s, message.HandedOver))
	case observe.Failed:
		m.settle(msg, m.failure(s, message.Failed))
	default:
		m.Release(msg)
	}
}

// failure returns the settlement of the message of s, which has failed. Its field Refused
// means that the service has rejected the call. The kind message.Rejected is different:
// the sink has rejected the failure.
func (m *Messages[IN, OUT]) failure(s *Slot[IN, OUT], kind message.Kind) message.Settlement {
	isRefused := m.core.reasons.get(s.index).last.IsRejection()
	return message.Settlement{Kind: kind, Err: s.err, Refused: isRefused}
}

// Reject settles the message of s for good, because the sink can never take it. It
// reports whether the message was pending.
func (m *Messages[IN, OUT]) Reject(s *Slot[IN, OUT], unsafeToRepeat bool) bool {
	return m.settle(m.attached.get(s.index), message.Settlement{Kind: message.Rejected, Err: s.err, UnsafeToRepeat: unsafeToRepeat})
}

// Release releases a message unless it is settled.
func (m *Messages[IN, OUT]) Release(msg call.Message) {
	m.settle(msg, message.Settlement{Kind: message.Released})
}

// settle queues a settlement, and reports whether the message was pending. The message
// stays pending until Settle. If a second settlement is queued meanwhile, the first takes
// effect (law D2).
func (m *Messages[IN, OUT]) settle(msg call.Message, v message.Settlement) (isPending bool) {
	isPending = msg.Pending()
	if isPending {
		m.settlements.Push(settlement{msg, v})
	}
	return isPending
}

// MaySettle reports whether Settle has work.
func (m *Messages[IN, OUT]) MaySettle() bool { return m.settlements.Len() > 0 }

// Settle settles messages, by code of their sources. The driver calls it once per step,
// and after the end.
func (m *Messages[IN, OUT]) Settle() {
	for m.settlements.Len() > 0 {
		err := m.settleAll()
		if err != nil {
			m.core.User.LogSourcePanic(err)
		}
	}
}

func (m *Messages[IN, OUT]) settleAll() (err error) {
	m.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = m.core.noteBroken("a source of messages", recover())
		}
	}()
	for m.settlements.Len() > 0 {
		s := m.settlements.Pop()
		s.message.Settle(s.as)
	}
	returned = true
	return nil
}
