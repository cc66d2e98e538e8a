package codec

import (
	"reflect"
	"sync"

	"github.com/weirflow/weir/codec/internal/wire"
)

// Default returns the codec that needs nothing from its user. It takes ordinary Go values: booleans, numbers,
// strings, structs, pointers, slices, maps, arrays, time.Time, nested and recursive, and types that marshal themselves
// (MarshalBinary and UnmarshalBinary; or GobEncode and GobDecode, MarshalText and UnmarshalText where a type cannot be taken
// apart). What it restores is equal to what was stored: NaN, -0, nil and empty slices and maps, nil pointers, the types of
// what is in interfaces.
//
// Default panics with a *[Error] if it cannot restore values of T exactly. The error names the type and the path to it. It
// refuses unexported fields, functions, channels, unsafe pointers, uintptr, and pointers as map keys.
//
// Not kept are: which pointers, slices and maps share memory (each comes back on its own; values that contain
// themselves are refused), capacities, a time's monotonic reading, the payload of a signalling float32 NaN. A
// location comes back as one of the same name, if the machine has it and agrees.
//
// An interface, T itself included, holds values of types that are known by name: the basic types, time.Time, time.Duration,
// []byte, []string, []int, []float64, []any, map[string]any, map[string]string, and those that [Register] was called with
// before Default. An interface that no such type implements is refused; a value of another type makes Append fail.
//
// The tag `weir:"-"` leaves a field out, exported or not: it comes back as zero. The tag `weir:"name"` stores it under
// another name than its own, which allows to rename it.
//
// The codec is a [SchemaCodec]. Fields are matched by name: a field that was added is zero, one that was removed is
// skipped, the order does not matter, and the names of types matter in interfaces only. The sizes of
// integers may change (a value that does not fit is an error), a float32 may become a float64; any other change
// of a type is refused by WithSchema. Without the schema, Decode reads what the same codec has written, and nothing else.
//
// A panic of a user's marshaling method is returned as an error. Safe for concurrent use.
func Default[T any]() Codec[T] {
	// Why no library. encoding/gob, the nearest: it leaves unexported fields, functions and channels out in silence; it
	// does not distinguish nil from empty, nor a pointer to zero from none; it refuses nil pointers in slices; it repeats the
	// types in every message, or makes messages depend on those before; and it is not hardened against hostile bytes.
	// encoding/json: no NaN, no int in any, no bytes in strings. Those outside of the standard library need
	// generated code or tags, or are no smaller than this: see BenchmarkCodec.
	c, err := wire.New(reflect.TypeFor[T]())
	if err != nil {
		panic(codecError[T]("the type cannot be stored", err))
	}
	return newDefaultCodec[T](c, c.OwnReader())
}

// Register makes a type known to every [Default] that is made afterwards, so that values of it may be in
// interfaces. It is stored under its import path and name. Call it from init functions or the beginning of main, in every
// version of the program; for pointers in interfaces register the pointer type.
//
// It panics with a *[Error] if T is an interface or cannot be stored, or if the name is taken by another type (for
// types that are declared in functions: see [RegisterName]).
func Register[T any]() { RegisterName[T]("") }

// RegisterName is [Register] under a given name: for a type that was renamed or moved since it was stored.
func RegisterName[T any](name string) {
	if err := wire.Register(reflect.TypeFor[T](), name); err != nil {
		panic(codecError[T]("the type cannot be registered", err))
	}
}

type defaultCodec[T any] struct {
	codec   *wire.Codec
	reader  *wire.Reader
	scratch sync.Pool // of *T, zero: reflection needs an address, and would make one per call
}

func newDefaultCodec[T any](c *wire.Codec, r *wire.Reader) *defaultCodec[T] {
	return &defaultCodec[T]{codec: c, reader: r, scratch: sync.Pool{New: func() any { return new(T) }}}
}

func (c *defaultCodec[T]) Append(dst []byte, v T) (_ []byte, err error) {
	p := c.scratch.Get().(*T)
	defer c.giveBack(p)
	defer recoverTo(&err)
	*p = v
	out, err := c.codec.Append(dst, reflect.ValueOf(p).Elem())
	if err != nil {
		return dst, codecError[T]("", err)
	}
	return out, nil
}

func (c *defaultCodec[T]) Decode(src []byte) (v T, err error) {
	p := c.scratch.Get().(*T)
	defer c.giveBack(p)
	defer recoverTo(&err)
	if err := c.reader.Decode(src, reflect.ValueOf(p).Elem()); err != nil {
		var zero T
		return zero, codecError[T]("", err)
	}
	return *p, nil
}

func (c *defaultCodec[T]) giveBack(p *T) {
	var zero T
	*p = zero // it must not keep the user's values alive
	c.scratch.Put(p)
}

func (c *defaultCodec[T]) Schema() []byte { return c.codec.Schema() }

func (c *defaultCodec[T]) WithSchema(schema []byte) (Codec[T], error) {
	r, err := c.codec.Reader(schema)
	if err != nil {
		return nil, codecError[T]("the stored values do not fit", err)
	}
	if r == c.reader {
		return c, nil
	}
	return newDefaultCodec[T](c.codec, r), nil
}
