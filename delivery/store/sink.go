package store

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/nils"
	"github.com/weirflow/weir/internal/panics"
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
	all := make([]Message, len(messages))
	errs := guard.Each(len(messages), func(i int) (err error) {
		meta := messages[i].Meta()
		all[i], err = encode(s.codec, messages[i].Value, delivery.Meta{
			ID: meta.ID, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Headers: meta.Headers,
		})
		return err
	}, broken)
	ms := make([]Message, 0, len(messages))
	for i, m := range messages {
		if err := errs[i]; err != nil {
			if !m.Pending() { // no source would see a rejection, and the value would be lost (law D1)
				return fmt.Errorf("store: queue %q: message %q: %w", s.queue, m.Meta().ID, err)
			}
			m.Reject(err)
			continue
		}
		ms = append(ms, all[i])
	}
	return s.store.Put(ctx, s.queue, ms...)
}

// Encode returns a value as a message. Its error matches [delivery.ErrRefused].
func Encode[T any](c codec.Codec[T], v T, meta delivery.Meta) (m Message, err error) {
	m.Meta = meta // also after a panic
	err = guard.Call(func() (err error) {
		m, err = encode(c, v, meta)
		return err
	}, broken)
	return m, err
}

func encode[T any](c codec.Codec[T], v T, meta delivery.Meta) (m Message, err error) {
	m = Message{Meta: meta, Schema: codec.SchemaOf(c)}
	m.Payload, err = c.Append(nil, v)
	return m, refused(err)
}

func broken(recovered any) error { return refused(panics.New("store", recovered)) }

// refused returns the error of a codec: another try makes no sense.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store: %w: the codec: %w", delivery.ErrRefused, err)
}
