package predicates

import (
	"fmt"
	"slices"
)

// The combinators are generic over the type of the predicate, P. So one name serves both
// kinds, and plain functions mix with named types. If any argument has a named type, the
// result has it, too.

// Not returns the opposite of predicate. It panics if predicate is nil.
func Not[A any, P ~func(A) bool](predicate P) P {
	if predicate == nil {
		panic("predicates: Not: nil predicate")
	}
	return func(outcome A) bool {
		return !predicate(outcome)
	}
}

// AnyOf returns a predicate that is true if any of predicates is. It panics without
// predicates, or if any is nil.
func AnyOf[A any, P ~func(A) bool](predicates ...P) P {
	predicates = checked("AnyOf", predicates)
	return func(outcome A) bool {
		return slices.ContainsFunc(predicates, func(p P) bool { return p(outcome) })
	}
}

// AllOf returns a predicate that is true if all predicates are. It panics without
// predicates, or if any is nil.
func AllOf[A any, P ~func(A) bool](predicates ...P) P {
	predicates = checked("AllOf", predicates)
	return func(outcome A) bool {
		return !slices.ContainsFunc(predicates, func(p P) bool { return !p(outcome) })
	}
}

// checked returns a copy of predicates, since the caller may reuse its slice. It panics
// in the name of caller if there are no predicates, or one is nil.
func checked[A any, P ~func(A) bool](caller string, predicates []P) []P {
	if len(predicates) == 0 {
		panic(fmt.Sprintf("predicates: %s: no predicates", caller))
	}
	for i, p := range predicates {
		if p == nil {
			panic(fmt.Sprintf("predicates: %s: nil predicate at index %d", caller, i))
		}
	}
	return slices.Clone(predicates)
}
