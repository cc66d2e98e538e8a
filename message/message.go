package message

import (
	"fmt"
	"reflect"
	"time"
)

// Message is an element of a stream together with its acknowledgement and its history. It is a value: copies share the
// acknowledgement. A *Message in a stream is an ordinary element, and so is a struct that embeds a Message.
//
// Of Ack, Nack, Reject and Settle the first that is called on any copy takes effect (law D2); later calls are ignored. The zero Message, and any
// other that no source has made, lacks an acknowledgement: these methods do not do anything.
//
// A part of a message ([Split]) is a Message of its own. Safe for concurrent use.
type Message[T any] struct {
	Value T
	a     *acknowledgement
}

// New returns a message. Sources call it.
//
// settle is called exactly once, with the settlement, from any goroutine, including the loop of an operator. It must not block: a source that has
// to write the settlement does so on a goroutine of its own. The source keeps the message, or extends its lease, until then. A nil settle makes a
// message with a history and without an acknowledgement, for streams with checkpoints.
//
// meta describes the message, or is nil. It must not be changed afterwards.
func New[T any](v T, meta *Meta, settle func(Settlement)) Message[T] {
	if meta == nil && settle == nil {
		return Message[T]{Value: v}
	}
	a := &acknowledgement{settle: settle, meta: meta}
	if settle == nil {
		a.settled.Store(true)
	}
	return Message[T]{v, a}
}

// Ack acknowledges the message: its results are safe (law D1), for example written by a sink, or stored among the dead
// letters.
func (m Message[T]) Ack() { m.Settle(Settlement{Kind: Acked}) }

// Nack gives the message back, to be delivered again, here or elsewhere. It is not redelivered before the delay is over; a negative delay counts
// as 0. Its source decides how late it may be.
func (m Message[T]) Nack(delay time.Duration) {
	m.Settle(Settlement{Kind: Nacked, Delay: delay})
}

// Reject gives the message up: it is not done, and must not be delivered again. Its source decides about it; where the source does not keep it,
// store it among the dead letters and acknowledge it instead. A nil err is replaced by an error that reports the nil.
func (m Message[T]) Reject(err error) { m.Settle(Settlement{Kind: Rejected, Err: err}) }

// Settle is Ack, Nack or Reject, according to v. It passes a settlement on with its error, for example for a message that has failed, and is
// acknowledged because it is safe among the dead letters. It panics if v.Kind is none of the three.
func (m Message[T]) Settle(v Settlement) {
	switch v.Kind {
	case Acked:
		v.Delay = 0
	case Nacked:
		v.Delay = max(0, v.Delay)
	case Rejected:
		v.Delay = 0
		if v.Err == nil {
			v.Err = errNoReason
		}
	default:
		panic(fmt.Sprintf("delivery: Settle: unknown settlement %v", v.Kind))
	}
	m.a.resolve(v)
}

// Meta returns the history of the message: zero, if it is unknown. It must not be changed: the maps and slices in it are shared. The
// ID of a part is the ID of the whole and the number of the part: "orders/0/17#2".
func (m Message[T]) Meta() Meta { return m.a.history() }

// Pending reports whether the message has an acknowledgement and is not settled.
func (m Message[T]) Pending() bool { return m.a != nil && !m.a.settled.Load() }

// With returns a message with another value and the acknowledgement and history of m. It takes the place of m. It does not allocate.
func With[A, B any](m Message[A], v B) Message[B] { return Message[B]{v, m.a} }

// Split returns a message for each value: they are parts of m and take its place. m is settled when the last part is:
//
//   - acknowledged, if all parts are
//   - else nacked, if any is; the longest delay counts
//   - else rejected, with the error of the first that was
//
// So a redelivery of m does not run beside parts of m, and a part that is rejected for good does not keep another from being
// delivered again (law D1). Without values m is acknowledged at once. A single value is not a part: it takes the place of m as by [With].
func Split[A, B any](m Message[A], vs ...B) []Message[B] {
	switch {
	case len(vs) == 0:
		m.Ack()
		return nil
	case len(vs) == 1:
		return []Message[B]{With(m, vs[0])}
	}
	messages := make([]Message[B], len(vs))
	var parts []acknowledgement
	if m.a != nil {
		parts = m.a.split(len(vs))
	}
	for i, v := range vs {
		messages[i].Value = v
		if parts != nil {
			messages[i].a = &parts[i]
		}
	}
	return messages
}

// FromElement returns an element of a stream as a message, whatever the type of its value; ok is false if it is not a message. It is for flows
// and sinks that take elements of any type: the handle of a message is With(m, struct{}{}), of a single word.
func FromElement(element any) (m Message[any], ok bool) {
	e, ok := element.(interface {
		self() (Message[any], reflect.Type)
	})
	if !ok {
		return Message[any]{}, false
	}
	t := reflect.TypeOf(element)
	if t.Kind() == reflect.Pointer {
		return Message[any]{}, false
	}
	m, self := e.self()
	if t != self { // t embeds a message
		return Message[any]{}, false
	}
	return m, true
}

// self marks messages, whatever their T.
func (m Message[T]) self() (Message[any], reflect.Type) {
	return Message[any]{m.Value, m.a}, reflect.TypeFor[Message[T]]()
}
