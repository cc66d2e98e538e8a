package predicates

import "slices"

// A ResultPredicate reports whether an attempt that ended with results should be tried again. It gets all results of the
// attempt, possibly none, and must neither change nor keep the slice. See [EmptyResult] and [AnyResult].
type ResultPredicate[OUT any] func(results []OUT) bool

// EmptyResult reports whether there are no results: the usual sign of a lookup that came too early. It is a [ResultPredicate].
func EmptyResult[OUT any](results []OUT) bool {
	return len(results) == 0
}

// AnyResult returns a predicate that is true if condition holds for at least
// a result; for no results it is false. It panics if condition is nil.
func AnyResult[OUT any](condition func(result OUT) bool) ResultPredicate[OUT] {
	if condition == nil {
		panic("predicates: AnyResult: nil condition")
	}
	return func(results []OUT) bool {
		return slices.ContainsFunc(results, condition)
	}
}
