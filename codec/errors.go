package codec

import (
	"fmt"
	"reflect"

	"github.com/weirflow/weir/internal/guard"
)

// Error reports that a type, a value or stored bytes do not fit a codec.
type Error struct {
	Type   reflect.Type // of the codec's values
	Path   string       // of the faulty part of a value, such as .Tags[].Cache; "" for the value itself, or if unknown
	Reason string
	Err    error // the cause, or nil
}

func codecError[T any](err error) *Error {
	return &Error{Type: reflect.TypeFor[T](), Err: err}
}

func (e *Error) Error() string {
	s := fmt.Sprintf("codec of %v: ", e.Type)
	if e.Path != "" {
		s += e.Path + ": "
	}
	switch {
	case e.Err == nil:
		return s + e.Reason
	case e.Reason == "":
		return s + fmt.Sprint(e.Err) // fmt recovers panics of users' errors
	default:
		return s + fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// recoverTo turns a panic of user code into an error.
func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = guard.Recovered("codec", r)
	}
}
