package leases

import (
	"fmt"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Encode returns a value as a message. Its error matches [message.ErrRefused].
func Encode[T any](c codec.Codec[T], v T, meta message.Meta) (m store.Message, err error) {
	var schema, payload []byte // a closure over m would move it to the heap
	err = guard.Call(func() (err error) {
		schema, payload, err = encode(c, v)
		return err
	}, broken)
	return store.Message{Meta: meta, Schema: schema, Payload: payload}, err
}

// EncodeAll is [Encode] for the values of messages, without metadata. It starts one
// goroutine that calls the codec for all values; Encode starts one for each value.
func EncodeAll[T any](c codec.Codec[T], values []message.Message[T]) (ms []store.Message, errs []error) {
	ms = make([]store.Message, len(values))
	errs = guard.Each(len(ms), func(i int) (err error) {
		ms[i].Schema, ms[i].Payload, err = encode(c, values[i].Value)
		return err
	}, broken)
	return ms, errs
}

func encode[T any](c codec.Codec[T], v T) (schema, payload []byte, err error) {
	schema = codec.SchemaOf(c)
	payload, err = c.Append(nil, v)
	return schema, payload, codecError(err)
}

func broken(recovered any) error { return codecError(guard.Recovered("store", recovered)) }

// codecError returns err as an error that matches [message.ErrRefused], because another
// try would fail as well. It returns nil if err is nil.
func codecError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store: %w: the codec: %w", message.ErrRefused, err)
}
