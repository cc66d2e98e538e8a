// Package decoder reads the stored values of a source, which several versions of a
// program may have written.
package decoder

import (
	"sync"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
)

// maxCodecs limits the cached schemas, since payloads determine their number.
const maxCodecs = 100

// Decoder reads values with the codec for their schema. It is safe for concurrent use.
type Decoder[T any] struct {
	user  string // the calling package, for errors of panics
	codec codec.Codec[T]

	mu     sync.Mutex
	codecs map[string]codec.Codec[T] // cache by schema; guarded by mu
}

// New returns a decoder for a codec. user is the name of the calling package.
func New[T any](user string, c codec.Codec[T]) *Decoder[T] {
	return &Decoder[T]{user: user, codec: c, codecs: map[string]codec.Codec[T]{}}
}

// Error is the error of a value that cannot be read.
type Error struct{ error }

// Unwrap returns the error or the panic of the codec.
func (e *Error) Unwrap() error { return e.error }

// Unreadable wraps err in an *[Error].
func Unreadable(err error) error { return &Error{err} }

// Decode reads a value that was written with a schema. The error is an *[Error].
func (d *Decoder[T]) Decode(schema, payload []byte) (value T, err error) {
	err = guard.Call(func() error {
		c, err := d.with(schema)
		if err != nil {
			return err
		}
		value, err = c.Decode(payload)
		return err
	}, func(recovered any) error { return guard.Recovered(d.user, recovered) })
	if err != nil {
		return value, Unreadable(err)
	}
	return value, nil
}

func (d *Decoder[T]) with(schema []byte) (codec.Codec[T], error) {
	d.mu.Lock()
	c := d.codecs[string(schema)]
	d.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := codec.WithSchema(d.codec, schema)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.codecs) >= maxCodecs {
		clear(d.codecs)
	}
	d.codecs[string(schema)] = c
	return c, nil
}
