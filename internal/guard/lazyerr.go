package guard

import (
	"errors"
	"fmt"
	"strings"
)

// Wrap returns err with the name of what it comes from before its message: "name: message".
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

// JoinedErrors are errors as errors.Join joins them, a line each.
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

// Format implements fmt.Formatter: %+v shows each of them with %+v.
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

// Unwrap returns them all.
func (j JoinedErrors) Unwrap() []error { return j }

// Is is errors.Is for an error of a user, whose methods may panic: one that does matches nothing.
func Is(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}
