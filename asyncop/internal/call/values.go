package call

import (
	"context"

	"github.com/weirflow/weir/internal/ctxkey"
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

// WithoutMessage returns the values of the context of an operator. It hides the message
// of a call around the operator.
func WithoutMessage(c context.Context) context.Context {
	if c.Value(ctxkey.Message{}) == nil {
		return c
	}
	return context.WithValue(c, ctxkey.Message{}, nil)
}

// withMessage is a context with a message. It builds the history when it is asked for it.
type withMessage struct {
	context.Context
	message Message
}

func (c *withMessage) Value(key any) any {
	if _, ok := key.(ctxkey.Message); ok {
		return c.message.Meta()
	}
	return c.Context.Value(key)
}

// WithValues returns c with the values of another context before its own. Keys that an
// attempt answers itself are not overridden. The end of values has no effect.
func WithValues(values context.Context, c Cancellable) context.Context {
	return &valued{c, context.WithoutCancel(values)}
}

// valued is a context with the values of another one before its own.
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

// isOfAttempt reports whether an attempt answers the key itself, even if it has no value
// for it. Contexts around it are not asked.
func isOfAttempt(key any) bool {
	switch key.(type) {
	case NumberKey, HostKey, BatchKey, CostKey, ctxkey.Members, ctxkey.Stage, ctxkey.Message:
		return true
	}
	return false
}
