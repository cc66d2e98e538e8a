package codec

import (
	"encoding"
	"encoding/gob"
	"reflect"
)

// CheckType returns a *[Error] with the path to the first part of T that c silently drops
// or changes. Queues and dead letters in files refuse such a type.
//
// For [JSON] it refuses the types that [Default] refuses, with one exception: an any may
// be the value of a map with strings as keys, or of a slice, as in map[string]any.
// Numbers in it are decoded as float64, so an integer beyond 2^53 loses digits: use
// json.RawMessage, or a struct, to keep them.
//
// For [Gob] it refuses unexported fields, functions and channels, and a pointer to
// anything but a struct or a type that writes itself, since a pointer to a zero value is
// decoded as nil.
//
// CheckType does not look at values. It returns nil for codecs of other packages and for
// [Func].
func CheckType[T any](c Codec[T]) error {
	checked, ok := c.(typeChecker)
	if !ok {
		return nil
	}
	found := checked.checkType()
	if found == nil {
		return nil
	}
	found.Type = reflect.TypeFor[T]()
	return found
}

// typeChecker is a codec of this package that may lose parts of a value.
type typeChecker interface {
	checkType() *Error // nil if T is kept
}

func (jsonCodec[T]) checkType() *Error {
	w := walk{exact: true, documents: true, seen: map[visit]bool{}}
	return w.find(reflect.TypeFor[T](), true, "")
}

func (gobCodec[T]) checkType() *Error {
	return findLostByGob(reflect.TypeFor[T](), "", map[reflect.Type]bool{})
}

// Methods by which a type encodes itself for encoding/gob.
var (
	gobEncoder      = reflect.TypeFor[gob.GobEncoder]()
	binaryMarshaler = reflect.TypeFor[encoding.BinaryMarshaler]()
)

// findLostByGob returns an error for the first part of t that encoding/gob omits. seen
// holds checked types.
func findLostByGob(t reflect.Type, path string, seen map[reflect.Type]bool) *Error {
	if seen[t] || writesGob(t) {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func:
		return &Error{Path: path, Reason: "gob leaves out a " + t.Kind().String()}
	case reflect.Pointer:
		if path != "" && t.Elem().Kind() != reflect.Struct && !writesGob(t.Elem()) {
			return &Error{Path: path, Reason: "gob decodes a pointer to a zero value as nil"}
		}
		return findLostByGob(t.Elem(), path, seen)
	case reflect.Slice, reflect.Array:
		return findLostByGob(t.Elem(), path+"[]", seen)
	case reflect.Map:
		lost := findLostByGob(t.Key(), path+"[key]", seen)
		if lost != nil {
			return lost
		}
		return findLostByGob(t.Elem(), path+"[]", seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if !f.IsExported() {
				return &Error{Path: path + "." + f.Name, Reason: "gob leaves out the unexported field"}
			}
			lost := findLostByGob(f.Type, path+"."+f.Name, seen)
			if lost != nil {
				return lost
			}
		}
	default:
	}
	return nil
}

func writesGob(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(gobEncoder) || p.Implements(binaryMarshaler)
}
