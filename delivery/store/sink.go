package store

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/nils"
)

// Sink puts the values of messages into a queue, as a [delivery.Sink]. They keep id, key, origin, provider and headers; their
// visits begin anew. A value that the codec cannot encode is rejected; if its message has no acknowledgement, Put returns the
// error and puts nothing. Safe for concurrent use.
type Sink[T any] struct {
	store Store
	queue string
	codec codec.Codec[T]
}

// NewSink returns a sink into a queue. It panics if an argument is nil or empty.
func NewSink[T any](s Store, queue string, c codec.Codec[T]) *Sink[T] {
	nils.Refuse("store: NewSink", "store", s)
	nils.Refuse("store: NewSink", "codec", c)
	if err := checkQueue(queue); err != nil {
		panic("store: NewSink: " + err.Error())
	}
	return &Sink[T]{s, queue, c}
}

// Put implements [delivery.Sink].
func (s *Sink[T]) Put(ctx context.Context, messages []delivery.Message[T]) error {
	ms := make([]Message, 0, len(messages))
	for _, m := range messages {
		meta := m.Meta()
		encoded, err := Encode(s.codec, m.Value, delivery.Meta{
			ID: meta.ID, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Headers: meta.Headers,
		})
		if err != nil {
			if !m.Pending() { // no source would see a rejection, and the value would be lost (law D1)
				return fmt.Errorf("store: queue %q: message %q: %w", s.queue, meta.ID, err)
			}
			m.Reject(err)
			continue
		}
		ms = append(ms, encoded)
	}
	return s.store.Put(ctx, s.queue, ms...)
}

// Encode returns a value as a message.
func Encode[T any](c codec.Codec[T], v T, meta delivery.Meta) (m Message, err error) {
	m = Message{Meta: meta, Schema: codec.SchemaOf(c)}
	err = quietly(func() (err error) {
		m.Payload, err = c.Append(nil, v)
		return err
	})
	return m, err
}
