package decision

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// The optional methods of errors, as in package errors.
type (
	wrapsOne  interface{ Unwrap() error }
	wrapsMany interface{ Unwrap() []error }
	hasIs     interface{ Is(target error) bool }
	hasAs     interface{ As(target any) bool }
)

// Joins reports whether err, or an error that it wraps, joins other errors.
func Joins(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if _, ok := err.(wrapsMany); ok {
			return true
		}
	}
	return false
}

// Branches returns the errors that err joins, at any depth, in order. If err is not a
// join, it returns only err. errors.Is and errors.As on a branch find the wrappers of the
// join and the branch.
func Branches(err error) []error {
	if !Joins(err) {
		return []error{err}
	}
	var all []error
	switch e := err.(type) { //nolint:errorlint // as errors.As looks for them
	case wrapsOne:
		all = Branches(e.Unwrap())
	case wrapsMany:
		for _, inner := range e.Unwrap() {
			if inner != nil {
				all = append(all, Branches(inner)...)
			}
		}
	}
	if len(all) == 0 {
		return []error{err} // an empty list
	}
	if !textOnly(err) {
		for i, inner := range all {
			all[i] = &branch{err, inner}
		}
	}
	return all
}

// Types of errors that only add text to others.
var (
	wrapped    = reflect.TypeOf(fmt.Errorf("%w", errors.ErrUnsupported))
	wrappedAll = reflect.TypeOf(fmt.Errorf("%w %w", errors.ErrUnsupported, errors.ErrUnsupported))
	join       = reflect.TypeOf(errors.Join(errors.ErrUnsupported))
)

var plain = reflect.TypeOf(errors.ErrUnsupported)

// mayHaveReason reports whether err may have a reason of its own. An error made by
// errors.New, such as io.EOF, has a reason only if NamedErrors knows its text. This holds
// for such an error inside an error of fmt.Errorf, too.
func mayHaveReason(err error) bool {
	for reflect.TypeOf(err) == wrapped {
		err = errors.Unwrap(err)
	}
	if reflect.TypeOf(err) != plain {
		return true
	}
	text := err.Error()
	for _, known := range knownTexts {
		if strings.HasPrefix(text, known) {
			return true
		}
	}
	return false
}

func textOnly(err error) bool {
	t := reflect.TypeOf(err)
	return t == wrapped || t == wrappedAll || t == join
}

// branch is the error inner, with the wrapper outer around it. outer joins inner, or
// wraps a join of inner.
type branch struct{ outer, inner error }

func (b *branch) Error() string { return b.inner.Error() } // outer's text contains the other branches
func (b *branch) Unwrap() error { return b.inner }

// Is reports whether outer itself is target.
func (b *branch) Is(target error) bool {
	if reflect.TypeOf(target).Comparable() && b.outer == target {
		return true
	}
	e, ok := b.outer.(hasIs)
	return ok && e.Is(target)
}

// As finds outer itself.
func (b *branch) As(target any) bool {
	if v := reflect.ValueOf(target).Elem(); reflect.TypeOf(b.outer).AssignableTo(v.Type()) {
		v.Set(reflect.ValueOf(b.outer))
		return true
	}
	e, ok := b.outer.(hasAs)
	return ok && e.As(target)
}

// AsBranch is errors.As for err itself, without errors that it wraps.
func AsBranch[T any](err error) (T, bool) {
	if t, ok := any(err).(T); ok {
		return t, true
	}
	var t T
	if e, ok := err.(hasAs); ok && e.As(&t) {
		return t, true
	}
	return t, false
}
