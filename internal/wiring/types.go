package wiring

import (
	"fmt"
	"reflect"

	"github.com/weirflow/weir/message"
)

// TakesFailures reports whether next handles a [Failure]: a step of weir, or a [Passer]
// that passes barriers. Other steps would treat it as an element.
func TakesFailures(next any) bool {
	if p, ok := next.(Passer); ok {
		return p.PassesBarriers()
	}
	return NodeOf(next) != nil
}

// mustMatch panics if to cannot take the elements of from and both types are known.
func mustMatch(method string, from, to *Node) {
	out, in := from.Out, to.In
	switch {
	case in == nil || out == nil, out.AssignableTo(in) && (in == out || in.Kind() == reflect.Interface):
	case out.Kind() == reflect.Interface || isMessage(in) || isMessage(out): // depends on the element
	default:
		panic(fmt.Sprintf("%s: the elements of %v are of type %v, and %v takes elements of type %v", method, from, out, to, in))
	}
}

func isMessage(t reflect.Type) bool {
	_, ok := message.FromElement(reflect.Zero(t).Interface())
	return ok
}
