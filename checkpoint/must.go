package checkpoint

import (
	"fmt"
	"reflect"
)

// mustHave panics if an argument is nil, also a nil pointer in an interface.
func mustHave(function, what string, v any) {
	if isNil(v) {
		panic(fmt.Sprintf("checkpoint: %s: nil %s", function, what))
	}
}

func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice:
		return r.IsNil()
	default:
		return false
	}
}
