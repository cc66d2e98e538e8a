package wiring

import (
	"fmt"
	"reflect"

	"github.com/weirflow/weir/message"
)

// TakesFailures reports whether next takes a [Failure]: a step of weir, or one that
// declares that it passes barriers. Other steps would take it for an element.
func TakesFailures(next any) bool {
	if p, ok := next.(Passer); ok {
		return p.PassesBarriers()
	}
	return NodeOf(next) != nil
}

// mustMatch panics if both types are known and a step that takes elements of type in
// cannot take elements of type out.
func mustMatch(method string, out, in reflect.Type) {
	switch {
	case in == nil || out == nil, out.AssignableTo(in) && (in == out || in.Kind() == reflect.Interface):
	case out.Kind() == reflect.Interface || isMessage(in) || isMessage(out): // it depends on the element
	default:
		panic(fmt.Sprintf("%s: the elements are of type %v, and the next step takes %v", method, out, in))
	}
}

func isMessage(t reflect.Type) bool {
	_, ok := message.FromElement(reflect.Zero(t).Interface())
	return ok
}
