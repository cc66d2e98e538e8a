package message

import (
	"fmt"
	"reflect"
	"time"
)

// Message is an element of a stream with its acknowledgement and its history. It is a
// value: copies share the acknowledgement. A *Message in a stream is an ordinary element,
// and so is a struct that embeds a Message.
//
// Of Ack, Nack, Release, Reject and Settle the first call on any copy takes effect (law
// D2). These methods have no effect on a message without an acknowledgement: the zero
// Message, or a message made with a nil settle. Safe for concurrent use.
type Message[T any] struct {
	Value T
	a     *acknowledgement
}

// New returns a message, for sources.
//
// settle is called exactly once, with the settlement, from any goroutine, including the
// loop of an operator. It must not block. The source keeps the message, or extends its
// lease, until then. A nil settle makes a message without an acknowledgement, for streams
// with checkpoints.
//
// meta describes the message, or is nil. It must not be changed afterwards.
func New[T any](v T, meta *Meta, settle func(Settlement)) Message[T] {
	if meta == nil && settle == nil {
		return Message[T]{Value: v}
	}
	a := &acknowledgement{settle: settle, meta: meta}
	if settle == nil {
		a.state.Store(bitSettled)
	}
	return Message[T]{v, a}
}

// Ack settles the message as Done: its results are safe (law D1), for example written by
// a sink.
func (m Message[T]) Ack() { m.Settle(Settlement{Kind: Done}) }

// Nack settles the message as Failed: it is redelivered, to any worker, after the delay.
// A negative delay counts as 0. Its source decides how late it may be.
func (m Message[T]) Nack(delay time.Duration) {
	m.Settle(Settlement{Kind: Failed, Delay: delay})
}

// Release settles the message as Released: it was not processed, or not to the end, and
// is redelivered at once, to any worker.
func (m Message[T]) Release() { m.Settle(Settlement{Kind: Released}) }

// Reject settles the message as Rejected: it must not be redelivered. If its source does
// not keep rejected messages, store it elsewhere and settle it as HandedOver. A nil err
// is replaced by an error that reports the nil.
func (m Message[T]) Reject(err error) { m.Settle(Settlement{Kind: Rejected, Err: err}) }

// Settle settles the message. It clears fields that the kind does not have, and sets a
// negative Delay to 0. It panics if v.Kind is not valid.
func (m Message[T]) Settle(v Settlement) {
	switch v.Kind {
	case Done:
		v = Settlement{Kind: Done}
	case HandedOver:
		v = Settlement{Kind: HandedOver, Err: v.Err, Refused: v.Refused}
	case Released:
		v = Settlement{Kind: Released, Delay: max(0, v.Delay), Err: v.Err}
	case Failed:
		v = Settlement{Kind: Failed, Delay: max(0, v.Delay), Err: v.Err, Refused: v.Refused}
	case Rejected:
		v = Settlement{Kind: Rejected, Err: v.Err, UnsafeToRepeat: v.UnsafeToRepeat}
		if v.Err == nil {
			v.Err = errNoReason
		}
	default:
		panic(fmt.Sprintf("delivery: Settle: unknown settlement %v", v.Kind))
	}
	m.a.resolve(v)
}

// Meta returns the history of the message, or the zero Meta if it is unknown. It must not
// be changed: its maps and slices are shared. The ID of a part is the ID of the whole and
// the number of the part: "orders/0/17#2". Meta.Provider is the present provider; the
// other fields are as received.
func (m Message[T]) Meta() Meta { return m.a.history() }

// Pending reports whether the message has an acknowledgement and is not settled.
func (m Message[T]) Pending() bool { return m.a != nil && !m.a.isSettled() }

// IsRejected reports whether the message was settled as [Rejected].
func (m Message[T]) IsRejected() bool { return m.a != nil && m.a.state.Load()&bitRejected != 0 }

// NoteUnsafeToRepeat notes that a call for m has succeeded and must not happen twice.
// Operators call it. If m or a result of m is rejected later, the settlement has
// UnsafeToRepeat set. If m is a part, the same holds for the message that was split.
func NoteUnsafeToRepeat[T any](m Message[T]) {
	for a := m.a; a != nil; a = a.madeFrom() {
		a.state.Or(bitUnsafeToRepeat)
	}
}

// With returns a message with another value and the acknowledgement and history of m,
// whose place it takes. It does not allocate.
func With[A, B any](m Message[A], v B) Message[B] { return Message[B]{v, m.a} }

// Split returns a message for each value: they are parts of m and take its place. m is
// settled when the last part is, so a redelivery of m does not run beside parts of m. The
// first row that applies counts:
//
//	a part has failed         failed, with the longest delay of all parts
//	a part was released       released, with the longest delay of all parts
//	a part was rejected       rejected, with the error of the first rejected part
//	a part was handed over    handed over
//	otherwise                 done
//
// So a rejected part does not prevent the redelivery of another part (law D1). If m is
// rejected, its settlement has UnsafeToRepeat set in these cases:
//
//   - a rejected part has it
//   - a call for a part has succeeded and must not happen twice ([NoteUnsafeToRepeat])
//   - a part was handed over: its calls are repeated without m
//
// Without values m is acknowledged at once. A single value takes the place of m as by
// [With].
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

// FromElement returns an element of a stream as a message, whatever the type of its
// value. ok is false if the element is not a Message. To keep a message without its
// value, keep With(m, struct{}{}): it has the size of a pointer.
func FromElement(element any) (m Message[any], ok bool) {
	e, ok := element.(ofAnyType)
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

// ofAnyType is a Message, whatever its T, or a type that embeds one.
type ofAnyType interface {
	// self returns the message as a Message[any], and its type.
	self() (Message[any], reflect.Type)
}

var _ ofAnyType = Message[int]{}

func (m Message[T]) self() (Message[any], reflect.Type) {
	return Message[any]{m.Value, m.a}, reflect.TypeFor[Message[T]]()
}
