package predicates

import (
	"fmt"
	"slices"
)

// The combinators are generic over the predicate type P, so they serve both kinds and
// plain functions. If any argument has a named type, the result has it.

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

// checked returns a copy of predicates, and panics in the name of caller without
// predicates, or if one is nil.
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
