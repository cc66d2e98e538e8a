package message

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
)

// Delivery is the handle of a message in flight, in which its source keeps the lease and
// the received bytes. It travels in the message and in the context of a call. The sources
// of package delivery make it. Its methods are safe for concurrent use, and their cost
// does not depend on the number of messages in flight.
type Delivery interface {
	// Owner identifies the queue that received the message. It is only compared with the
	// owners of other deliveries.
	Owner() any

	// Visit returns the id, visit and merges of the message as received. They differ from
	// the Meta of a part of the message, and of a message that the program has renamed.
	Visit() (id string, visit, merges int)

	// AsReceived returns the received payload and schema. isSame reports whether the
	// received value encodes to encoded. Then the program has not changed the value.
	AsReceived(encoded []byte) (payload, schema []byte, isSame bool)

	// IsPurged reports whether the source has found that the message was purged. Then its
	// results and failures must not be stored, nor its calls started.
	IsPurged() bool

	// Provider returns the message's present provider, or "".
	Provider() string

	// SetProvider stores a provider with the message. canKeep is false if the message is
	// no longer in flight, or its source does not keep providers. err reports a failed
	// write.
	SetProvider(ctx context.Context, provider string) (canKeep bool, err error)
}

// NewContext returns a copy of ctx for a call for m, outside of an operator.
// [MetaFromContext] returns the history of m, and the methods of a queue
// (delivery.Queue.TakeFailure, delivery.Queue.Provider) find the delivery of m.
func NewContext[T any](ctx context.Context, m Message[T]) context.Context {
	ctx = context.WithValue(ctx, ctxkey.Delivery{}, DeliveryOf(m))
	return context.WithValue(ctx, ctxkey.Message{}, m.Meta())
}

// Attach sets the delivery of a new message, before its source passes it on. It has no
// effect on a message without a Meta and without a function that settles it, such as the
// zero Message.
func Attach[T any](m Message[T], d Delivery) Message[T] {
	if m.a != nil {
		m.a.delivery = d
	}
	return m
}

// DeliveryOf returns the delivery of a message, or nil. A message made by [With] or
// [Split] has the delivery of the original message.
func DeliveryOf[T any](m Message[T]) Delivery {
	if m.a == nil {
		return nil
	}
	return m.a.delivery
}

// IsPurged reports whether m was purged while in flight. Then its results and failures
// must not be stored. It is false for a message without a delivery.
func (m Message[T]) IsPurged() bool {
	d := DeliveryOf(m)
	return d != nil && d.IsPurged()
}

// DeliveryFromContext returns the delivery of the message of a call, or nil. ctx is the
// context of the call, or of [NewContext].
func DeliveryFromContext(ctx context.Context) Delivery {
	d, _ := ctx.Value(ctxkey.Delivery{}).(Delivery)
	return d
}
