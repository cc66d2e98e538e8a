package message

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
)

// NewContext returns a copy of ctx for a call for m. [MetaFromContext] returns the
// history of m, and the methods of a queue (delivery.Queue.TakeFailure,
// delivery.Queue.Provider) find the delivery of m. An operator does this for its
// messages; this function is for calls outside of an operator.
func NewContext[T any](ctx context.Context, m Message[T]) context.Context {
	ctx = context.WithValue(ctx, ctxkey.Delivery{}, DeliveryOf(m))
	return context.WithValue(ctx, ctxkey.Message{}, m.Meta())
}

// Attach sets the handle of a new message. Only weir's own sources call it, before they
// pass the message on.
func Attach[T any](m Message[T], d ctxkey.Handle) Message[T] {
	if m.a != nil {
		m.a.delivery = d
	}
	return m
}

// DeliveryOf returns the handle of a message, or nil. A message made by [With] has the
// handle of its message; a part has none. It is for weir's own packages.
func DeliveryOf[T any](m Message[T]) ctxkey.Handle {
	if m.a == nil {
		return nil
	}
	return m.a.delivery
}

// DeliveryFromContext returns the handle of the message that a function of an operator is
// called for, or nil. It is for weir's own packages.
func DeliveryFromContext(ctx context.Context) ctxkey.Handle {
	d, _ := ctx.Value(ctxkey.Delivery{}).(ctxkey.Handle)
	return d
}
