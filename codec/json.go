package codec

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
)

// JSON returns a codec that writes values as encoding/json does: for states that people want to read. It takes more time
// and space than [Default], and what JSON cannot express is refused (NaN, complex numbers, channels) or comes back
// changed: strings that are not UTF-8, numbers in an any (all float64), unexported fields (zero), a time's location.
// It reads plain JSON that was stored without a schema, such as the payload of a message that another program has put.
//
// In a map encoding/json does not call MarshalJSON and MarshalText if they have pointer receivers. JSON panics for a type with
// such a map, with a *[Error] that names the path to it: let the map hold pointers.
func JSON[T any]() Codec[T] {
	if found := (uncalled{}).find(reflect.TypeFor[T](), true, ""); found != nil {
		found.Type = reflect.TypeFor[T]()
		panic(found)
	}
	return jsonCodec[T]{}
}

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Append(dst []byte, v T) ([]byte, error) {
	b := bytes.NewBuffer(dst)
	enc := json.NewEncoder(b) // appends, json.Marshal does not
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&v); err != nil { // a pointer: without one, methods with pointer receivers are not called
		return dst, codecError[T]("", err)
	}
	b.Truncate(b.Len() - 1) // a line end
	return b.Bytes(), nil
}

func (jsonCodec[T]) Decode(src []byte) (T, error) {
	var v T
	if err := json.Unmarshal(src, &v); err != nil {
		var zero T
		return zero, codecError[T]("", err)
	}
	return v, nil
}

func (jsonCodec[T]) Schema() []byte { return []byte(schemaJSON) }

// WithSchema takes values without a schema, too: those that other programs have written, and JSON is what it says.
func (c jsonCodec[T]) WithSchema(schema []byte) (Codec[T], error) {
	if len(schema) == 0 {
		return c, nil
	}
	if err := schemaJSON.check(schema); err != nil {
		return nil, codecError[T]("", err)
	}
	return c, nil
}

// uncalled looks for methods that encoding/json does not call, silently: those with pointer receivers of what a map holds,
// since that has no address. The key is what was looked at; whether it has an address matters.
type uncalled map[uncalledKey]bool

type uncalledKey struct {
	t           reflect.Type
	addressable bool
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// find returns an error for the first such method of t or of its parts, or nil. It goes the way of encoding/json.
func (u uncalled) find(t reflect.Type, addressable bool, path string) *Error {
	if u[uncalledKey{t, addressable}] {
		return nil
	}
	u[uncalledKey{t, addressable}] = true
	for _, m := range []reflect.Type{jsonMarshaler, textMarshaler} {
		if t.Implements(m) {
			return nil
		}
		if reflect.PointerTo(t).Implements(m) {
			if addressable {
				return nil
			}
			return notCalled(t, m, path, "let the map hold pointers")
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return u.find(t.Elem(), true, path)
	case reflect.Slice:
		return u.find(t.Elem(), true, path+"[]")
	case reflect.Array:
		return u.find(t.Elem(), addressable, path+"[]")
	case reflect.Map:
		if k := t.Key(); !k.Implements(textMarshaler) && reflect.PointerTo(k).Implements(textMarshaler) {
			return notCalled(k, textMarshaler, path+"[key]", "give it a value receiver")
		}
		return u.find(t.Elem(), false, path+"[]")
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if err := u.find(f.Type, addressable, path+"."+f.Name); err != nil {
				return err
			}
		}
	default:
	}
	return nil
}

func notCalled(t, marshaler reflect.Type, path, remedy string) *Error {
	return &Error{Path: path, Reason: fmt.Sprintf("%s of %v has a pointer receiver, and encoding/json does not call it in a map: %s",
		marshaler.Method(0).Name, t, remedy)}
}
