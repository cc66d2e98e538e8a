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
		schema = codec.SchemaOf(c)
		payload, err = c.Append(nil, v)
		return refused(err)
	}, broken)
	return store.Message{Meta: meta, Schema: schema, Payload: payload}, err
}

func broken(recovered any) error { return refused(guard.Recovered("store", recovered)) }

// refused returns the error of a codec: another try makes no sense.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("store: %w: the codec: %w", message.ErrRefused, err)
}
