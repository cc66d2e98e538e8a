package message

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
)

// Delivery is the handle of a message in flight. Its source keeps the lease and the
// received bytes of the message there. It travels in the message and in the context of a
// call. The sources of package delivery make it, and the queue that received the message
// reads it. Its methods are safe for concurrent use, and their cost does not depend on
// the number of messages in flight.
type Delivery interface {
	// Owner identifies the queue whose source has received the message. It is only
	// compared.
	Owner() any

	// Visit returns the id, the number of the visit and the number of merges that the
	// message was received with. A part of the message has another id, and so has a
	// message that a program has renamed.
	Visit() (id string, visit, merges int)

	// AsReceived returns the payload and the schema that were received. isSame reports
	// whether they decode to a value that encodes to encoded: then the program has not
	// changed the value.
	AsReceived(encoded []byte) (payload, schema []byte, isSame bool)

	// IsPurged reports whether the source has found that the message was purged. Then its
	// results and failures must not be stored, and its calls must not start.
	IsPurged() bool

	// Provider returns the provider that the message has now, or "".
	Provider() string

	// SetProvider stores a provider with the message. canKeep is false if the message is
	// no longer in flight, or its source does not keep providers. err is not nil if the
	// provider could not be stored.
	SetProvider(ctx context.Context, provider string) (canKeep bool, err error)
}

// NewContext returns a copy of ctx for a call for m. [MetaFromContext] returns the
// history of m, and the methods of a queue (delivery.Queue.TakeFailure,
// delivery.Queue.Provider) find the delivery of m. An operator does this for its
// messages; this function is for calls outside of an operator.
func NewContext[T any](ctx context.Context, m Message[T]) context.Context {
	ctx = context.WithValue(ctx, ctxkey.Delivery{}, DeliveryOf(m))
	return context.WithValue(ctx, ctxkey.Message{}, m.Meta())
}

// Attach sets the delivery of a new message. A source calls it before it passes the
// message on. It has no effect on a message made without a Meta and without a function
// that settles it, such as the zero Message.
func Attach[T any](m Message[T], d Delivery) Message[T] {
	if m.a != nil {
		m.a.delivery = d
	}
	return m
}

// DeliveryOf returns the delivery of a message, or nil. A message made by [With] has the
// delivery of its message, and a part has the delivery of the whole.
func DeliveryOf[T any](m Message[T]) Delivery {
	if m.a == nil {
		return nil
	}
	return m.a.delivery
}

// IsPurged reports whether the source of m has found that m was purged while it was in
// flight. Then its results and failures must not be stored. It is false for a message
// without a delivery.
func (m Message[T]) IsPurged() bool {
	d := DeliveryOf(m)
	return d != nil && d.IsPurged()
}

// DeliveryFromContext returns the delivery of the message of a call, or nil. ctx is the
// context of the call, or was made by [NewContext].
func DeliveryFromContext(ctx context.Context) Delivery {
	d, _ := ctx.Value(ctxkey.Delivery{}).(Delivery)
	return d
}
