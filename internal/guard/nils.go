package guard

import "reflect"

// IsNil reports whether v is nil or holds a nil of its type.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.UnsafePointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return r.IsNil()
	default:
		return false
	}
}

// RefuseNil panics if an argument is nil (IsNil), with a message such as "checkpoint:
// NewSource: nil input".
func RefuseNil(function, argument string, v any) {
	if IsNil(v) {
		panic(function + ": nil " + argument)
	}
}
