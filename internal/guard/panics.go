package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
)

// PanicError reports that user code panicked or called runtime.Goexit.
type PanicError struct {
	Package string // package that called the code; "" if a wrapping error names it
	Value   any    // the argument of panic, or ErrGoexit
	Stack   []byte // of the goroutine that panicked
}

// ErrGoexit is the Value of a [PanicError] after a call of runtime.Goexit.
var ErrGoexit = errors.New("runtime.Goexit was called")

// Recovered wraps the result of recover in a package. A nil recovered means
// runtime.Goexit.
func Recovered(inPackage string, recovered any) *PanicError {
	if recovered == nil {
		recovered = ErrGoexit
	}
	return &PanicError{Package: inPackage, Value: recovered, Stack: debug.Stack()}
}

// Error returns a message with the top frame of the user's code.
func (e *PanicError) Error() string {
	if e.Package == "" {
		return Message(e.Value, e.Stack)
	}
	return e.Package + ": " + Message(e.Value, e.Stack)
}

// Format implements fmt.Formatter: %+v adds the stack.
func (e *PanicError) Format(f fmt.State, verb rune) { Format(f, verb, e.Error(), e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Message returns a message such as "panic in user code: boom (at lookup.go:42
// main.lookup)".
func Message(value any, stack []byte) string {
	s := fmt.Sprintf("panic in user code: %v", value) // fmt recovers panics of the value's methods
	if frame := Frame(stack); frame != "" {
		s += " (at " + frame + ")"
	}
	return s
}

// Format implements fmt.Formatter for an error with a message and a stack: %+v adds the
// stack.
func Format(f fmt.State, verb rune, message string, stack []byte) {
	if verb == 'v' && f.Flag('+') {
		_, _ = io.WriteString(f, message)
		if len(stack) > 0 {
			_, _ = io.WriteString(f, "\n"+strings.TrimSuffix(string(stack), "\n"))
		}
		return
	}
	_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), message)
}

// Frame returns the top frame of the user's code, such as "lookup.go:42 main.lookup", or
// "". It skips the standard library and this module, except its tests and programs.
func Frame(stack []byte) string {
	library := func(string) bool { return false } // reports whether a file belongs to the standard library
	below := belowRecover(stack)
	for len(stack) > 0 {
		function, rest := line(stack)
		file, rest := line(rest)
		if !strings.HasPrefix(file, "\t") { // the first or the last line of the stack
			_, stack = line(stack)
			continue
		}
		above := len(stack) > below
		stack = rest
		if strings.HasPrefix(function, "created by ") {
			return ""
		}
		file, _, _ = strings.Cut(file[1:], " +0x")
		if i := strings.LastIndexByte(function, '('); i > 0 { // cut off the arguments
			function = function[:i]
		}
		if function == "runtime/debug.Stack" {
			library = libraryOf(file)
		}
		if !above && isUsers(function, file) && !library(file) {
			return path.Base(strings.ReplaceAll(file, `\`, "/")) + " " + path.Base(function)
		}
	}
	return ""
}

// belowRecover returns the number of bytes of the stack from the frame of panic or Goexit
// to the end.
func belowRecover(stack []byte) int {
	for _, start := range []string{"\npanic(", "\nruntime.Goexit("} {
		if i := bytes.Index(stack, []byte(start)); i >= 0 {
			return len(stack) - i - 1
		}
	}
	return len(stack)
}

func line(text []byte) (first string, rest []byte) {
	l, rest, _ := bytes.Cut(text, []byte("\n"))
	return string(l), rest
}

// module is the path of this module, with a slash.
var module = strings.TrimSuffix(reflect.TypeFor[marker]().PkgPath(), "internal/guard")

type marker struct{}

// programs are the folders of this module whose code counts as a user's code.
var programs = [...]string{"examples/", "bench/", "cmd/"}

// libraryOf returns a function that reports whether a file belongs to the standard
// library. stack is the file and line of debug.Stack. With -trimpath, import paths whose
// first element lacks a dot are the standard library, except the main module.
func libraryOf(stack string) func(file string) bool {
	dir, _, _ := strings.Cut(stack, "runtime/debug/stack.go:")
	return func(file string) bool {
		if dir != "" {
			return strings.HasPrefix(file, dir)
		}
		first, _, _ := strings.Cut(file, "/")
		return !strings.Contains(first, ".") && !strings.HasPrefix(file, mainModule()+"/")
	}
}

// mainModule returns the path of the main module.
var mainModule = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	return info.Main.Path
})

// isUsers reports whether a function belongs to user code or the standard library.
func isUsers(function, file string) bool {
	if function == "panic" || strings.HasPrefix(function, "runtime.") {
		return false
	}
	inside, ours := strings.CutPrefix(function, module)
	if !ours {
		return true
	}
	for _, p := range programs {
		if strings.HasPrefix(inside, p) {
			return true
		}
	}
	return strings.Contains(file, "_test.go:")
}
