package predicates

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weirflow/weir/predicates/internal/joined"
)

// A Classifier names the reason why an attempt deserves another try.
//
//	answer          meaning
//	reason, true    this is the reason
//	rejection, true the call was refused for good, without effect ([NewRejection]):
//	                the outcome is accepted
//	none, true      there is none, and nobody further down the chain is asked:
//	                the outcome is accepted (the zero [Reason] is none)
//	anything, false this classifier does not know the outcome; if nobody does,
//	                it is accepted
//
// Accepted means that the outcome, be it results or an error, is what the element
// ends with. A classifier is called for results, too, where a.Err is nil. It must
// not block, and must not change a, except for a.Stage where it has proof. Of errors
// that are joined it sees one at a time: see [EachError].
//
// Classifiers are data first: [ByError], [ByCode], then what a server says about
// its own codes, [ByServerMap], then predicates, [ByException], [ByResult],
// [ByPredicates]; [Classifiers] chains them. All of these are safe for concurrent
// use, as far as the functions they were built from are.
type Classifier[OUT any] func(a *Attempt[OUT]) (Reason, bool)

// Classifiers returns the classifier that asks each in the order given and takes
// the first answer. With none it knows nothing. Of joined errors it asks about each:
// see [EachError]. It panics if one is nil.
func Classifiers[OUT any](classifiers ...Classifier[OUT]) Classifier[OUT] {
	for i, c := range classifiers {
		if c == nil {
			panic(fmt.Sprintf("predicates: Classifiers: nil classifier at index %d", i))
		}
	}
	classifiers = slices.Clone(classifiers) // the caller may reuse its slice
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		for _, c := range classifiers {
			if r, ok := c(a); ok {
				return r, true
			}
		}
		return Reason{}, false
	})
}

// EachError returns the classifier for functions that make several requests and
// join their errors ([errors.Join], or several %w). One retry repeats them all, so
// what it may do depends on each: classify sees the errors one by one, each in its own
// stage ([StageOf]), as if it were the attempt's only one. The answer is [WeakestOf]
// their reasons, in the latest of their stages.
//
//	an error of several                             what the others allow
//	has a reason                                    stays, if this one allows it too
//	was refused for good (a rejection)              stays: it has had no effect
//	has none, or no classifier knows it             is lost: it may have had an effect
//	has none, but is in stage ClientDispatch        stays: it has had no effect
//	is one of harmless                              stays
//
// harmless are errors that say nothing about a request, such as the sentinel in
// fmt.Errorf("%w: %w", ErrLookup, err): those that [errors.Is] finds in the innermost
// error of a branch. What wraps a join speaks for all that it joins, as does the reason
// of a [*ReasonError] or the stage of a [*StageError].
//
// The classifiers of weir, and policies (strategies.ReasonAware), see each error by
// themselves, so EachError is needed to name harmless ones, for which there is
// Policy.Harmless, too. It panics if classify or one of harmless is nil.
func EachError[OUT any](classify Classifier[OUT], harmless ...error) Classifier[OUT] {
	if classify == nil {
		panic("predicates: EachError: nil classifier")
	}
	for i, err := range harmless {
		if err == nil {
			panic(fmt.Sprintf("predicates: EachError: nil error at index %d", i))
		}
	}
	harmless = slices.Clone(harmless) // the caller may reuse its slice
	return func(a *Attempt[OUT]) (Reason, bool) {
		switch {
		case a.Err == nil:
			return classify(a)
		case !joined.Joins(a.Err):
			a.Stage = stageOfOne(a.Err, a.Stage)
			if a.part == branch && isHarmless(a.Err, harmless) {
				a.part = harmlessBranch // for the EachError around this one
				return Reason{}, false
			}
			return classify(a)
		}
		reported := a.Stage
		a.Stage = StageOf(a.Err, reported) // for the case that classify panics
		var (
			reasons []Reason
			stages  stages
			known   bool
		)
		for _, err := range joined.Branches(a.Err) {
			if isHarmless(err, harmless) {
				continue
			}
			one := *a
			one.Err, one.Stage, one.part = err, stageOfOne(err, reported), branch
			r, ok := classify(&one)
			switch {
			case ok:
				known = true
			case one.part == harmlessBranch:
				continue
			default:
				r = Reason{}
			}
			if !r.IsZero() || one.Stage != ClientDispatch {
				reasons = append(reasons, r)
			}
			stages.add(one.Stage)
		}
		if stages.n > 0 {
			a.Stage = stages.latest()
		}
		return WeakestOf(reasons...), known
	}
}

// isHarmless reports whether one of harmless is the innermost error of err, which does
// not say itself that something was sent.
func isHarmless(err error, harmless []error) bool {
	if len(harmless) == 0 || stageOfOne(err, Unreported) > ClientDispatch {
		return false
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return slices.ContainsFunc(harmless, func(target error) bool { return errors.Is(err, target) })
}

// Named returns the classifier of errors that name their own reason: those that
// [WithReason] made, wherever they are wrapped.
func Named[OUT any]() Classifier[OUT] {
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		if a.Err == nil {
			return Reason{}, false
		}
		e, ok := errors.AsType[*ReasonError](a.Err)
		if !ok {
			return Reason{}, false
		}
		return e.Reason, true
	})
}

// ErrorReason is a row of a table of errors.
type ErrorReason struct {
	Target error  // found by errors.Is
	Reason Reason // none: accept the outcome
}

// ByError returns the classifier that looks errors up in a table: the first row
// whose target [errors.Is] finds. It panics if a target is nil.
func ByError[OUT any](rows ...ErrorReason) Classifier[OUT] {
	for i, row := range rows {
		if row.Target == nil {
			panic(fmt.Sprintf("predicates: ByError: nil target at index %d", i))
		}
	}
	rows = slices.Clone(rows)
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		if a.Err == nil {
			return Reason{}, false
		}
		for _, row := range rows {
			if errors.Is(a.Err, row.Target) {
				return row.Reason, true
			}
		}
		return Reason{}, false
	})
}

// ByCode returns the classifier that looks codes up in a table. code extracts
// the outcome's, if it has one: see [ErrorCode] and [ResultCode]. A row with the
// zero reason accepts the outcome. ByCode panics if code is nil.
func ByCode[OUT any, C comparable](code func(a *Attempt[OUT]) (C, bool), table map[C]Reason) Classifier[OUT] {
	if code == nil {
		panic("predicates: ByCode: nil code")
	}
	table = maps.Clone(table)
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		c, ok := code(a)
		if !ok {
			return Reason{}, false
		}
		r, ok := table[c]
		return r, ok
	})
}

// ByServerMap returns the classifier that asks the server: one that tells its
// clients which of its codes, newer ones than theirs, may be retried. It comes
// after the tables of the codes one knows. retry reports what the server said
// about c; true names reason. Otherwise, also for a code the server did not
// mention, the outcome is accepted and nobody else is asked: what neither the
// client nor the server knows to be safe to repeat is not.
//
// How long to wait is not asked: that is the strategy's business. retry must be
// safe for concurrent use, as the map may be replaced any time. ByServerMap
// panics if code or retry is nil or reason is zero.
//
// This is what RFC 0049 says about the KV error map.
func ByServerMap[OUT any, C comparable](
	code func(a *Attempt[OUT]) (C, bool), retry func(c C) bool, reason Reason,
) Classifier[OUT] {
	switch {
	case code == nil:
		panic("predicates: ByServerMap: nil code")
	case retry == nil:
		panic("predicates: ByServerMap: nil retry")
	case reason.IsZero():
		panic("predicates: ByServerMap: no reason")
	}
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		c, ok := code(a)
		switch {
		case !ok:
			return Reason{}, false
		case !retry(c):
			return Reason{}, true
		default:
			return reason, true
		}
	})
}

// ErrorCode returns the extraction, for [ByCode] and [ByServerMap], of a code
// from errors of type E, the first that [errors.AsType] finds. It panics if code is
// nil.
func ErrorCode[OUT any, E error, C comparable](code func(err E) C) func(a *Attempt[OUT]) (C, bool) {
	if code == nil {
		panic("predicates: ErrorCode: nil code")
	}
	return func(a *Attempt[OUT]) (C, bool) {
		if a.Err != nil {
			if err, ok := errors.AsType[E](a.Err); ok {
				return code(err), true
			}
		}
		var none C
		return none, false
	}
}

// ResultCode returns the extraction, for [ByCode] and [ByServerMap], of a code
// from results: that of the first result for which code reports true. It panics
// if code is nil.
func ResultCode[OUT any, C comparable](code func(result OUT) (C, bool)) func(a *Attempt[OUT]) (C, bool) {
	if code == nil {
		panic("predicates: ResultCode: nil code")
	}
	return func(a *Attempt[OUT]) (C, bool) {
		if a.Err == nil {
			for _, result := range a.Results {
				if c, ok := code(result); ok {
					return c, true
				}
			}
		}
		var none C
		return none, false
	}
}

// ByStage returns the classifier that names reason for errors in this stage, as
// [StageOf] finds it. By itself a stage is no reason, so this is what has calls
// retried that were not sent:
//
//	predicates.ByStage[Reply](predicates.ClientDispatch, predicates.NewReason("NOT_SENT", true, false))
//
// It belongs behind classifiers that know which errors are permanent. ByStage panics
// if there is no such stage, or for Unreported.
func ByStage[OUT any](stage Stage, reason Reason) Classifier[OUT] {
	if stage == Unreported || stage > ResponseReceived {
		panic(fmt.Sprintf("predicates: ByStage: no stage to look for: %v", stage))
	}
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err != nil && a.Stage == stage
	})
}

// ByException returns the classifier that names reason for errors that satisfy
// p. It panics if p is nil.
func ByException[OUT any](p ExceptionPredicate, reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByException: nil predicate")
	}
	return EachError(func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err != nil && p(a.Err)
	})
}

// ByResult returns the classifier that names reason for results that satisfy p.
// It panics if p is nil.
func ByResult[OUT any](p ResultPredicate[OUT], reason Reason) Classifier[OUT] {
	if p == nil {
		panic("predicates: ByResult: nil predicate")
	}
	return func(a *Attempt[OUT]) (Reason, bool) {
		return reason, a.Err == nil && p(a.Results)
	}
}

// ByPredicates returns the predicates of a FLIP-232 strategy as a classifier: it
// names [ResultMatched] and [ExceptionMatched]. It reads p once; a nil p and nil
// predicates match nothing.
func ByPredicates[OUT any](p AsyncRetryPredicate[OUT]) Classifier[OUT] {
	var result ResultPredicate[OUT]
	var exception ExceptionPredicate
	if p != nil {
		result, exception = p.ResultPredicate(), p.ExceptionPredicate()
	}
	// Every result of every FLIP-232 strategy passes here, so this is not a chain.
	return func(a *Attempt[OUT]) (Reason, bool) {
		if a.Err != nil {
			return ExceptionMatched, exception != nil && exception(a.Err)
		}
		return ResultMatched, result != nil && result(a.Results)
	}
}
