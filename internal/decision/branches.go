package decision

import (
	"errors"
	"fmt"
	"reflect"
)

// Joins reports whether err or one that it wraps joins others.
func Joins(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if _, ok := err.(interface{ Unwrap() []error }); ok {
			return true
		}
	}
	return false
}

// Branches returns the errors that err joins, in order, at whatever depth: err itself if it joins none. Each branch joins
// nothing, and comes with what is wrapped around the join, since a wrapper speaks for all that it wraps: errors.Is and
// errors.As find the wrapper, then the branch, and no other branch.
func Branches(err error) []error {
	if !Joins(err) {
		return []error{err}
	}
	var all []error
	switch e := err.(type) { //nolint:errorlint // this is what errors.As does
	case interface{ Unwrap() error }:
		all = Branches(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if inner != nil {
				all = append(all, Branches(inner)...)
			}
		}
	}
	if len(all) == 0 {
		return []error{err} // it could join some
	}
	if !textOnly(err) {
		for i, inner := range all {
			all[i] = &branch{err, inner}
		}
	}
	return all
}

// The types of errors that add nothing but text to what they wrap.
var (
	wrapped    = reflect.TypeOf(fmt.Errorf("%w", errors.ErrUnsupported))
	wrappedAll = reflect.TypeOf(fmt.Errorf("%w %w", errors.ErrUnsupported, errors.ErrUnsupported))
	join       = reflect.TypeOf(errors.Join(errors.ErrUnsupported))
)

func textOnly(err error) bool {
	t := reflect.TypeOf(err)
	return t == wrapped || t == wrappedAll || t == join
}

// branch is one branch of what outer joins or wraps a join of.
type branch struct{ outer, inner error }

func (b *branch) Error() string { return b.inner.Error() } // that of outer has the other branches in it
func (b *branch) Unwrap() error { return b.inner }

// Is reports whether outer is target, whatever outer wraps.
func (b *branch) Is(target error) bool {
	if reflect.TypeOf(target).Comparable() && b.outer == target {
		return true
	}
	e, ok := b.outer.(interface{ Is(target error) bool })
	return ok && e.Is(target)
}

// As finds outer, whatever it wraps.
func (b *branch) As(target any) bool {
	if v := reflect.ValueOf(target).Elem(); reflect.TypeOf(b.outer).AssignableTo(v.Type()) {
		v.Set(reflect.ValueOf(b.outer))
		return true
	}
	e, ok := b.outer.(interface{ As(target any) bool })
	return ok && e.As(target)
}

// AsBranch is errors.As for err alone, without what it wraps.
func AsBranch[T any](err error) (T, bool) {
	if t, ok := any(err).(T); ok {
		return t, true
	}
	var t T
	if e, ok := err.(interface{ As(target any) bool }); ok && e.As(&t) {
		return t, true
	}
	return t, false
}
