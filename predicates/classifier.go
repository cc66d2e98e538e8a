package predicates

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Classifier names the reason why an attempt deserves another try.
//
//	return              meaning
//	reason, true        this is the reason
//	rejection, true     the call was refused for good, without effect ([NewRejection]):
//	                    the outcome is accepted
//	Reason{}, true      the outcome is accepted, and no further classifier is asked
//	any reason, false   this classifier does not know the outcome, which is accepted
//	                    if no classifier of the chain knows it
//
// Accepted means that the element ends with the outcome. For results, a.Err is nil. A
// classifier must not block, and must not change a, except for a.Stage if it has proof of
// another stage.
//
// A switch is often enough:
//
//	func(a *predicates.Attempt[Row]) (predicates.Reason, bool) {
//		return NotSent, a.Err != nil && a.Stage == predicates.ClientDispatch
//	}
//
// [ByException], [ByResult] and [ByCode] make classifiers from predicates and tables,
// [Classifiers] chains them. They are safe for concurrent use if their functions are.
//
// # Joined errors
//
// A function may make several requests and join their errors ([errors.Join], or several
// %w). A policy (strategies.ReasonAware) passes each error to the classifier separately,
// in its own stage, as if it were the attempt's only error. The reason that allows least
// counts:
//
//	one of several errors                           effect on the reasons of the other errors
//	has a reason                                    they allow only retries that this reason allows, too
//	was refused for good (a rejection)              unchanged: this request had no effect
//	no reason, or unknown to the classifiers        they allow no retry: this request may have had an effect
//	no reason, but in stage ClientDispatch          unchanged: this request had no effect
//	is one of Policy.Harmless                       unchanged
//
// An error that wraps joined errors applies to all of them.
type Classifier[OUT any] func(a *Attempt[OUT]) (Reason, bool)

// Classifiers returns a classifier that calls classifiers in order and returns the first
// result that is true, otherwise false. It panics if any is nil.
func Classifiers[OUT any](classifiers ...Classifier[OUT]) Classifier[OUT] {
	for i, c := range classifiers {
		if c == nil {
			panic(fmt.Sprintf("predicates: Classifiers: nil classifier at index %d", i))
		}
	}
	classifiers = slices.Clone(classifiers)
	return func(a *Attempt[OUT]) (Reason, bool) {
		for _, c := range classifiers {
			if r, ok := c(a); ok {
				return r, true
			}
		}
		return Reason{}, false
	}
}

// Named returns a classifier of errors of [WithReason], even if they are wrapped.
func Named[OUT any]() Classifier[OUT] {
	return func(a *Attempt[OUT]) (Reason, bool) {
		if a.Err == nil {
			return Reason{}, false
		}
		e, ok := errors.AsType[*reasonError](a.Err)
		if !ok {
			return Reason{}, false
		}
		return e.reason, true
	}
}

// ByCode returns a classifier that looks up codes in a table. code returns the code of
// the outcome, or false: httpretry.StatusCode, grpcretry.Code and pgretry.SQLState return
// such functions. The zero reason accepts the outcome. ByCode panics if code is nil.
func ByCode[OUT any, C comparable](code func(a *Attempt[OUT]) (C, bool), table map[C]Reason) Classifier[OUT] {
	if code == nil {
		panic("predicates: ByCode: nil code")
	}
	table = maps.Clone(table)
	return func(a *Attempt[OUT]) (Reason, bool) {
		c, ok := code(a)
		if !ok {
			return Reason{}, false
		}
		r, ok := table[c]
		return r, ok
	}
}

// ByException returns a classifier that returns reason for errors that satisfy p. It
// panics if p is nil.
func ByException[OUT any](p ExceptionPredicate, reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByException: nil predicate")
	}
	return func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err != nil && p(a.Err)
	}
}

// ByResult returns a classifier that returns reason for results that satisfy p. It panics
// if p is nil.
func ByResult[OUT any](p ResultPredicate[OUT], reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByResult: nil predicate")
	}
	return func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err == nil && p(a.Results)
	}
}
