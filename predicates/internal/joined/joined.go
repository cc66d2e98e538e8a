// Package joined looks into errors that join others, as the outcome of a call that
// made several requests does.
package joined

import (
	"errors"
	"iter"
)

// Outermost yields the errors in err's tree that are wanted: of a chain of wrapped
// errors the outermost one, and of an error that joins others those of every
// branch, in order.
func Outermost(err error, wanted func(err error) bool) iter.Seq[error] {
	return func(yield func(error) bool) { walk(err, wanted, yield) }
}

func walk(err error, wanted func(error) bool, yield func(error) bool) (goOn bool) {
	if err == nil {
		return true
	}
	if wanted(err) {
		return yield(err)
	}
	switch e := err.(type) { //nolint:errorlint // this is what errors.As does
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), wanted, yield)
	case interface{ Unwrap() []error }:
		for _, branch := range e.Unwrap() {
			if !walk(branch, wanted, yield) {
				return false
			}
		}
	}
	return true
}

// All yields what [Outermost] does of the errors that are a T, as errors.As has it.
func All[T any](err error) iter.Seq[T] {
	return func(yield func(T) bool) {
		var found T
		Outermost(err, func(err error) (ok bool) { found, ok = As[T](err); return ok })(func(error) bool { return yield(found) })
	}
}

// Joins reports whether err or one that it wraps joins others.
func Joins(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if _, ok := err.(interface{ Unwrap() []error }); ok {
			return true
		}
	}
	return false
}

// As is errors.As for err alone, without what it wraps.
func As[T any](err error) (T, bool) {
	if t, ok := any(err).(T); ok {
		return t, true
	}
	var t T
	if e, ok := err.(interface{ As(target any) bool }); ok && e.As(&t) {
		return t, true
	}
	return t, false
}
