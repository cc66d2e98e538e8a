// Package nils finds nils that comparing with nil does not find.
package nils

import "reflect"

// Is reports whether v is nil or holds a nil of its type, such as a nil pointer in an interface.
func Is(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.UnsafePointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return r.IsNil()
	default:
		return false
	}
}

// Refuse panics if an argument of a function is nil, as Is defines it: "checkpoint: NewSource: nil input".
func Refuse(function, argument string, v any) {
	if Is(v) {
		panic(function + ": nil " + argument)
	}
}
