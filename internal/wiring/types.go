package wiring

import (
	"fmt"
	"reflect"

	"github.com/weirflow/weir/message"
)

// Question is asked by this package alone.
type Question struct{}

// Typed is an end of a stream that knows the types of its elements: those that it takes, and those that it sends. nil: it has no such side,
// or takes and sends elements of several types.
type Typed interface {
	ElementTypes(q Question) (in, out reflect.Type)
}

// TakesFailures reports whether next is of weir, or says that it passes barriers. Others would take a [Failure] for an element.
func TakesFailures(next any) bool {
	if p, ok := next.(interface{ PassesBarriers() bool }); ok { // a participant.Passer
		return p.PassesBarriers()
	}
	_, isOurs := next.(Typed)
	return isOurs
}

// MustMatch panics if both ends know their type, and to takes no element that from sends.
func MustMatch(method string, from, to any) {
	sender, sends := from.(Typed)
	taker, takes := to.(Typed)
	if !sends || !takes {
		return
	}
	_, out := sender.ElementTypes(Question{})
	in, _ := taker.ElementTypes(Question{})
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
