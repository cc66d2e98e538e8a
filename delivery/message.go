package delivery

import (
	"context"

	"github.com/weirflow/weir/message"
)

// Message is an element of a stream together with its acknowledgement and its history: see [message.Message].
type Message[T any] = message.Message[T]

// Meta is the metadata of a message: see [message.Meta].
type Meta = message.Meta

// Origin is a place in a source: see [message.Origin].
type Origin = message.Origin

// Verdict is how a message was settled: see [message.Verdict].
type Verdict = message.Verdict

// Kind is the kind of a [Verdict]: see [message.Kind].
type Kind = message.Kind

// The ways to settle a message: see [message.Acked].
const (
	Acked    = message.Acked
	Rejected = message.Rejected
	Nacked   = message.Nacked
)

var (
	// ErrLost is the error of the verdict on a message that was garbage collected before it was settled: see [FindLost].
	ErrLost = message.ErrLost

	// ErrRefused is matched by the error of a [Sink], a store or a failure sink for a message or element that it can never take: it is too
	// large, or cannot be encoded. It is not offered again. The message is rejected, so it ends among the dead letters of its source.
	ErrRefused = message.ErrRefused
)

// New returns a message: see [message.New].
func New[T any](v T, meta *Meta, settle func(Verdict)) Message[T] {
	return message.New(v, meta, settle)
}

// With returns a message with another value and the acknowledgement and history of m: see [message.With].
func With[A, B any](m Message[A], v B) Message[B] { return message.With(m, v) }

// Split returns a message for each value: they are parts of m and take its place. See [message.Split].
func Split[A, B any](m Message[A], vs ...B) []Message[B] { return message.Split(m, vs...) }

// FromElement returns an element of a stream as a message, whatever the type of its value: see [message.FromElement].
func FromElement(element any) (m Message[any], ok bool) { return message.FromElement(element) }

// FindLost returns a message that takes the place of m, and is nacked if it is lost: see [message.FindLost].
func FindLost[T any](m Message[T]) Message[T] { return message.FindLost(m) }

// MetaFromContext returns the metadata of the message that a function of an operator is called for: see [message.MetaFromContext].
func MetaFromContext(ctx context.Context) (m Meta, ok bool) { return message.MetaFromContext(ctx) }

// ContextWithMeta returns a copy of ctx with which [MetaFromContext] returns m.
func ContextWithMeta(ctx context.Context, m Meta) context.Context {
	return message.ContextWithMeta(ctx, m)
}

// MetaFromHeaders returns the Meta that [message.Meta.ToHeaders] has written: see [message.MetaFromHeaders].
func MetaFromHeaders(h map[string]string) (Meta, error) { return message.MetaFromHeaders(h) }
