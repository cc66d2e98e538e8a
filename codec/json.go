package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// JSON returns a codec that writes values as encoding/json does. It refuses values that
// JSON cannot express (NaN, complex numbers, channels). It changes values that [Default]
// refuses: strings that are not UTF-8, numbers in an any (all float64), unexported fields
// (zero), a time's location. [CheckType] finds the types among them.
//
// JSON reads plain JSON without a schema, such as the payload of another program's
// message. It skips a byte order mark.
//
// In a map encoding/json does not call MarshalJSON and MarshalText with pointer
// receivers. JSON panics for a type with such a map, with a *[Error]: let the map hold
// pointers.
func JSON[T any]() Codec[T] {
	w := walk{seen: map[visit]bool{}}
	if found := w.find(reflect.TypeFor[T](), true, ""); found != nil {
		found.Type = reflect.TypeFor[T]()
		panic(found)
	}
	return jsonCodec[T]{}
}

// byteOrderMark is U+FEFF in UTF-8.
const byteOrderMark = "\xef\xbb\xbf"

type jsonCodec[T any] struct {
	text  bool // refuses strings that are not UTF-8
	nests bool // refuses values too deep to be read
}

func (c jsonCodec[T]) Append(dst []byte, v T) (_ []byte, err error) {
	defer recoverTo(&err)
	b := bytes.NewBuffer(dst)
	enc := json.NewEncoder(b) // appends, unlike json.Marshal
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&v); err != nil { // for methods with pointer receivers
		return dst, codecError[T](err)
	}
	b.Truncate(b.Len() - 1) // the line end
	switch written := b.Bytes()[len(dst):]; {
	case c.text && isChanged(written):
		return dst, codecError[T](errNoUTF8)
	case c.nests && !json.Valid(written):
		return dst, codecError[T](errDeep)
	}
	return b.Bytes(), nil
}

func (jsonCodec[T]) Decode(src []byte) (v T, err error) {
	defer recoverTo(&err)
	src = bytes.TrimPrefix(src, []byte(byteOrderMark))
	if err := json.Unmarshal(src, &v); err != nil {
		var zero T
		return zero, codecError[T](err)
	}
	return v, nil
}

func (jsonCodec[T]) Schema() []byte { return []byte(schemaJSON) }

// WithSchema also takes values without a schema: plain JSON of other programs.
func (c jsonCodec[T]) WithSchema(schema []byte) (Codec[T], error) {
	if len(schema) == 0 {
		return c, nil
	}
	if err := schemaJSON.check(schema); err != nil {
		return nil, codecError[T](err)
	}
	return c, nil
}
