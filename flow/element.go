package flow

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/weirflow/weir/message"
)

var errNested = errors.New("the function has returned a message for the value of a message: let it take messages, or return values")

// element is the argument of a function.
type element[T any] struct {
	value   T
	whole   any                       // the original element
	handle  message.Message[struct{}] // of a message
	carried bool                      // the function receives only the value of a message
}

type decoder[T any] struct {
	nilAllowed bool // T is an interface
	isMessage  bool // T is a message, which the function handles itself
}

func newDecoder[T any]() decoder[T] {
	var zero T
	return decoder[T]{nilAllowed: reflect.TypeFor[T]().Kind() == reflect.Interface, isMessage: isMessage(zero)}
}

func isMessage[T any](v T) bool {
	_, ok := message.FromElement(v)
	return ok
}

// decode recognises messages before it checks T. An element of a wrong type keeps its
// handle.
func (d decoder[T]) decode(v any) (e element[T], err error) {
	e.whole = v
	if !d.nilAllowed && !d.isMessage {
		if t, ok := v.(T); ok { // most elements
			e.value = t
			return e, nil
		}
		if m, ok := v.(message.Message[T]); ok {
			e.value = m.Value
			e.handle = message.With(m, struct{}{})
			e.carried = true
			return e, nil
		}
	}
	value := v
	if m, ok := message.FromElement(v); ok {
		e.handle = message.With(m, struct{}{})
		e.carried = !d.isMessage
		if e.carried {
			value = m.Value
		}
	}
	var ok bool
	e.value, ok = value.(T)
	if !ok && (value != nil || !d.nilAllowed) {
		return e, fmt.Errorf("got an element of type %T, want %v", v, reflect.TypeFor[T]())
	}
	return e, nil
}
