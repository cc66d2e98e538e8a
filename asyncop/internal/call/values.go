package call

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/message"
)

// WithEnd returns a context with the values of one context and the end of another.
func WithEnd(values, end context.Context) context.Context { return &endedBy{end, values} }

type endedBy struct {
	context.Context
	values context.Context //nolint:containedctx // it is part of one
}

func (c *endedBy) Value(key any) any {
	if v := c.values.Value(key); v != nil || isOfAttempt(key) {
		return v
	}
	return c.Context.Value(key)
}

// WithMessage returns a context with a message.
func WithMessage(c context.Context, m Message) context.Context { return &withMessage{c, m} }

// ValuesOf returns a context with the values of c, but without its end and the message of
// an outer call. It is a pointer, and can be compared even if c cannot.
func ValuesOf(c context.Context) context.Context {
	endless := context.WithoutCancel(c)
	if c.Value(ctxkey.Message{}) == nil {
		return &plainValues{endless}
	}
	return context.WithValue(context.WithValue(endless, ctxkey.Message{}, nil), ctxkey.Delivery{}, nil)
}

type plainValues struct{ context.Context }

// withMessage is a context with a message.
type withMessage struct {
	context.Context
	message Message
}

func (c *withMessage) Value(key any) any {
	switch key.(type) {
	case ctxkey.Message:
		return c.message.Meta()
	case ctxkey.Delivery:
		return message.DeliveryOf(c.message)
	}
	return c.Context.Value(key)
}

// WithValues returns c with more values, which hide the values of c, except for the keys
// of an attempt. The end of values has no effect.
func WithValues(values context.Context, c Cancellable) context.Context {
	return &valued{c, context.WithoutCancel(values)}
}

type valued struct {
	Cancellable
	values context.Context //nolint:containedctx // it is part of one
}

func (c *valued) Value(key any) any {
	if !isOfAttempt(key) {
		if v := c.values.Value(key); v != nil {
			return v
		}
	}
	return c.Cancellable.Value(key)
}

// isOfAttempt reports whether the values of observers must not answer the key. The
// attempt answers it, or asks the outer call: see the table in doc.go.
func isOfAttempt(key any) bool {
	switch key.(type) {
	case NumberKey, AttemptKey, BackendKey, ReservationKey, BatchKey, CostKey,
		ctxkey.Borrow, ctxkey.Members, ctxkey.Stage, ctxkey.Message, ctxkey.Delivery:
		return true
	}
	return false
}

// WithReservation returns the context of an attempt with a reservation.
func WithReservation(attempt Cancellable, r Reservation) Cancellable { return &reserving{attempt, r} }

type reserving struct {
	Cancellable
	reservation Reservation
}

func (c *reserving) Value(key any) any {
	if _, ok := key.(ReservationKey); ok {
		return c.reservation
	}
	return c.Cancellable.Value(key)
}
