package codec

import (
	"bytes"
	"encoding/gob"
	"fmt"
)

// Gob returns a codec that writes every value as a gob stream, for types made for
// encoding/gob. Every value repeats its types, so it is large and slow. Types in
// interfaces must be registered with [gob.Register].
//
// Not every value is decoded as it was:
//
//   - Unexported fields, functions and channels are left out silently.
//   - Nil and empty slices are the same.
//   - A field that points to a zero value is decoded as nil.
//   - A nil pointer that is the element itself is decoded as a pointer to a zero value.
//   - A nil pointer in a slice, an array or a map is an error.
//   - A value in a map or an interface is an error if its GobEncode or MarshalBinary has
//     a pointer receiver.
//
// encoding/gob is documented as not hardened against adversarial bytes.
func Gob[T any]() Codec[T] { return gobCodec[T]{} }

type gobCodec[T any] struct{}

func (gobCodec[T]) Append(dst []byte, v T) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // encoding/gob panics on a nil pointer in a slice
			out, err = dst, codecError[T](fmt.Errorf("%v", p))
		}
	}()
	b := bytes.NewBuffer(dst)
	if err := gob.NewEncoder(b).Encode(&v); err != nil { // a pointer, because T may be an interface
		return dst, codecError[T](err)
	}
	return b.Bytes(), nil
}

func (gobCodec[T]) Decode(src []byte) (v T, err error) {
	defer recoverTo(&err)
	var zero T
	r := bytes.NewReader(src)
	if err := gob.NewDecoder(r).Decode(&v); err != nil {
		return zero, codecError[T](err)
	}
	if r.Len() > 0 {
		return zero, codecError[T](fmt.Errorf("%d bytes are left over", r.Len()))
	}
	return v, nil
}

func (gobCodec[T]) Schema() []byte { return []byte(schemaGob) }

func (c gobCodec[T]) WithSchema(schema []byte) (Codec[T], error) {
	if err := schemaGob.check(schema); err != nil {
		return nil, codecError[T](err)
	}
	return c, nil
}
