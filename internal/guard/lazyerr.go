package guard

import (
	"errors"
	"fmt"
	"strings"
)

// Wrap returns an error that wraps err, with the message "name: message". It calls
// err.Error on demand.
func Wrap(name string, err error) error { return &named{name, err} }

type named struct {
	name string
	err  error
}

func (e *named) Error() string { return fmt.Sprintf("%s: %v", e.name, e.err) }
func (e *named) Unwrap() error { return e.err }

// Format implements fmt.Formatter: %+v shows the cause with %+v.
func (e *named) Format(f fmt.State, verb rune) {
	if verb == 'v' && f.Flag('+') {
		_, _ = fmt.Fprintf(f, "%s: %+v", e.name, e.err)
		return
	}
	_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), e.Error())
}

// JoinedErrors joins errors as errors.Join does, one per line.
type JoinedErrors []error

// Join returns the errors that are not nil, joined.
func Join(errs ...error) JoinedErrors {
	var j JoinedErrors
	for _, err := range errs {
		if err != nil {
			j = append(j, err)
		}
	}
	return j
}

func (j JoinedErrors) Error() string {
	lines := make([]string, len(j))
	for i, err := range j {
		lines[i] = fmt.Sprint(err) // recovers panics
	}
	return strings.Join(lines, "\n")
}

// Format implements fmt.Formatter: %+v shows each error with %+v.
func (j JoinedErrors) Format(f fmt.State, verb rune) {
	if verb != 'v' || !f.Flag('+') {
		_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), j.Error())
		return
	}
	for i, err := range j {
		if i > 0 {
			_, _ = fmt.Fprintln(f)
		}
		_, _ = fmt.Fprintf(f, "%+v", err)
	}
}

// Unwrap returns all errors.
func (j JoinedErrors) Unwrap() []error { return j }

// Is is errors.Is for a user's error. If a method of the error panics, Is returns false.
func Is(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}
