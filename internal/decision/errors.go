package decision

import (
	"fmt"
	"runtime/debug"

	"github.com/weirflow/weir/internal/panics"
)

// PanicError is a panic of a classifier, a strategy or a jitter.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack formats it
}

// Error returns a message with the place of the panic: the top frame of the user's code.
func (e *PanicError) Error() string { return "strategies: " + panics.Message(e.Value, e.Stack) }

// Format implements fmt.Formatter: %+v adds the stack.
func (e *PanicError) Format(f fmt.State, verb rune) { panics.Format(f, verb, e.Error(), e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// recoverTo is deferred around user code.
func recoverTo(err *error) {
	if value := recover(); value != nil {
		*err = &PanicError{Value: value, Stack: debug.Stack()}
	}
}
