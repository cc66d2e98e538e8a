package predicates

import (
	"errors"
	"fmt"
	"slices"
)

// An ExceptionPredicate reports whether an attempt that ended with err should be tried again. err is never nil. See
// [HasException], [ErrorIs] and [ErrorAs].
type ExceptionPredicate func(err error) bool

// HasException reports whether err is an error at all, whatever it is: also a cancelled context, and the error that stands for
// a panic of the user's function. It is an [ExceptionPredicate].
func HasException(err error) bool {
	return err != nil
}

// ErrorIs returns a predicate that is true if [errors.Is] finds any of
// the targets. It panics without targets, or if any is nil.
func ErrorIs(targets ...error) ExceptionPredicate {
	if len(targets) == 0 {
		panic("predicates: ErrorIs: no targets")
	}
	for i, target := range targets {
		if target == nil {
			panic(fmt.Sprintf("predicates: ErrorIs: nil target at index %d", i))
		}
	}
	targets = slices.Clone(targets) // the caller may reuse its slice
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool {
			return errors.Is(err, target)
		})
	}
}

// ErrorAs returns a predicate that is true if [errors.AsType] finds a T and the conditions hold for it:
//
//	predicates.ErrorAs[*net.OpError]()
//	predicates.ErrorAs(func(e net.Error) bool { return e.Timeout() })
//
// As with errors.AsType, the first T counts, even if others are joined to it. It panics if a condition is nil.
func ErrorAs[T error](conditions ...func(err T) bool) ExceptionPredicate {
	for i, condition := range conditions {
		if condition == nil {
			panic(fmt.Sprintf("predicates: ErrorAs: nil condition at index %d", i))
		}
	}
	conditions = slices.Clone(conditions) // the caller may reuse its slice
	return func(err error) bool {
		target, ok := errors.AsType[T](err)
		return ok && !slices.ContainsFunc(conditions, func(condition func(err T) bool) bool {
			return !condition(target)
		})
	}
}
