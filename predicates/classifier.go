package predicates

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Classifier names the reason why an attempt deserves another try.
//
//	answer          meaning
//	reason, true    this is the reason
//	rejection, true the call was refused for good, without effect ([NewRejection]):
//	                the outcome is accepted
//	none, true      there is none, and no further classifier is asked: the outcome
//	                is accepted (the zero [Reason] is none)
//	anything, false this classifier does not know the outcome; if none of a chain
//	                does, it is accepted
//
// Accepted means that the element ends with the outcome, be it results or an error. A classifier is called for results, too, where a.Err is nil.
// It must not block, and must not change a, except for a.Stage where it has proof.
//
// A classifier is a function, and a switch is often enough:
//
//	func(a *predicates.Attempt[Row]) (predicates.Reason, bool) {
//		return NotSent, a.Err != nil && a.Stage == predicates.ClientDispatch
//	}
//
// [ByException], [ByResult] and [ByCode] make classifiers from predicates and tables, [Classifiers] chains them. These are safe for concurrent
// use if the functions they were built from are.
//
// # Joined errors
//
// A function may make several requests and join their errors ([errors.Join], or several %w). One retry repeats them all. A
// policy (strategies.ReasonAware) shows each error to the classifier alone, in its own stage, as if it were the
// attempt's only error. The reason that allows least counts:
//
//	an error of several                             what the others allow
//	has a reason                                    stays, if this one allows it too
//	was refused for good (a rejection)              stays: it has had no effect
//	has none, or no classifier knows it             is lost: it may have had an effect
//	has none, but is in stage ClientDispatch        stays: it has had no effect
//	is one of Policy.Harmless                       stays
//
// An error that wraps a join speaks for all that it joins.
type Classifier[OUT any] func(a *Attempt[OUT]) (Reason, bool)

// Classifiers returns the classifier that asks each in the order given and takes
// the first answer. Without classifiers it never has a reason. It panics if any is nil.
func Classifiers[OUT any](classifiers ...Classifier[OUT]) Classifier[OUT] {
	for i, c := range classifiers {
		if c == nil {
			panic(fmt.Sprintf("predicates: Classifiers: nil classifier at index %d", i))
		}
	}
	classifiers = slices.Clone(classifiers) // the caller may reuse its slice
	return func(a *Attempt[OUT]) (Reason, bool) {
		for _, c := range classifiers {
			if r, ok := c(a); ok {
				return r, true
			}
		}
		return Reason{}, false
	}
}

// Named returns the classifier of errors that name their own reason: errors of [WithReason], however they are wrapped.
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

// ByCode returns the classifier that looks codes up in a table. code returns the code of the outcome, if there is a code:
// httpretry.StatusCode, grpcretry.Code and pgretry.SQLState are such functions. A row with the zero reason accepts the outcome.
// ByCode panics if code is nil.
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

// ByException returns the classifier that names reason for errors that satisfy p. It panics if p is nil.
func ByException[OUT any](p ExceptionPredicate, reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByException: nil predicate")
	}
	return func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err != nil && p(a.Err)
	}
}

// ByResult returns the classifier that names reason for results that satisfy p. It panics if p is nil.
func ByResult[OUT any](p ResultPredicate[OUT], reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByResult: nil predicate")
	}
	return func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err == nil && p(a.Results)
	}
}
