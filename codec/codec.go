package codec

import (
	"bytes"
	"fmt"

	"github.com/weirflow/weir/internal/guard"
)

// Codec turns values into bytes and back, each by itself.
//
//	codec                  needs                       bytes of a value
//	Default[T]()           what JSON keeps exactly     JSON
//	JSON[T]()              what encoding/json needs    JSON
//	Gob[T]()               what encoding/gob needs     a gob stream, types included: large
//	Func(append, decode)   two functions               yours: protobuf, …
//
// A codec is safe for concurrent use. For every v that Append takes, Decode returns an
// equal value. Decode does not panic, whatever bytes it gets: it returns an error. Its
// memory is bounded by the number of bytes times the size of the Go types that they are
// read into.
//
// Package codectest checks your own codec against these rules.
//
// A codec that depends on the types of this version of the program should be a
// [SchemaCodec].
type Codec[T any] interface {
	// Append appends the encoding of v to dst and returns the extended buffer. With an
	// error, the returned buffer is ignored, and dst must be unchanged up to its length.
	// It must not keep a reference to dst.
	Append(dst []byte, v T) ([]byte, error)

	// Decode returns the value that the whole of src encodes. It must not change src, or
	// keep a reference to it.
	Decode(src []byte) (T, error)
}

// SchemaCodec is a codec that describes its format. The description is stored once beside
// many values. So a program can read the values of another version of itself, in which
// fields were added, removed or moved, and refuses the values of another codec.
type SchemaCodec[T any] interface {
	Codec[T]

	// Schema returns the description of the format that Append writes. The caller must
	// not change it.
	Schema() []byte

	// WithSchema returns a codec whose Decode reads values written under the schema, or
	// an error if it cannot.
	WithSchema(schema []byte) (Codec[T], error)
}

// SchemaOf returns the schema to store beside the values of c, or nil if c has no schema.
func SchemaOf[T any](c Codec[T]) []byte {
	if s, ok := c.(SchemaCodec[T]); ok {
		return s.Schema()
	}
	return nil
}

// WithSchema returns the codec that decodes values that were stored beside a schema: c
// itself, or the codec that c makes from it. The error is a *[Error] if they do not fit.
func WithSchema[T any](c Codec[T], schema []byte) (Codec[T], error) {
	s, ok := c.(SchemaCodec[T])
	switch {
	case ok:
		return s.WithSchema(schema)
	case len(schema) > 0:
		return nil, codecError[T](fmt.Errorf("the values were stored by a codec with a schema, %T has none", c))
	default:
		return c, nil
	}
}

// Func makes a codec from two functions, which must follow the rules of [Codec]. With
// protobuf:
//
//	codec.Func(
//		func(dst []byte, m *pb.Row) ([]byte, error) { return proto.MarshalOptions{}.MarshalAppend(dst, m) },
//		func(src []byte) (*pb.Row, error) { m := new(pb.Row); return m, proto.Unmarshal(src, m) })
//
// It does not have a schema. It panics if a function is nil.
func Func[T any](appendTo func(dst []byte, v T) ([]byte, error), decode func(src []byte) (T, error)) Codec[T] {
	guard.RefuseNil("codec: Func", "append function", appendTo)
	guard.RefuseNil("codec: Func", "decode function", decode)
	return codecFunc[T]{appendTo, decode}
}

type codecFunc[T any] struct {
	appendTo func(dst []byte, v T) ([]byte, error)
	decode   func(src []byte) (T, error)
}

func (c codecFunc[T]) Append(dst []byte, v T) ([]byte, error) { return c.appendTo(dst, v) }
func (c codecFunc[T]) Decode(src []byte) (T, error)           { return c.decode(src) }

// namedSchema is the schema of self-describing values: a name to distinguish codecs.
type namedSchema string

const (
	schemaJSON namedSchema = "json"
	schemaGob  namedSchema = "gob"
)

func (n namedSchema) check(schema []byte) error {
	if !bytes.Equal(schema, []byte(n)) {
		return fmt.Errorf("the values were not stored by the codec %q", string(n))
	}
	return nil
}
