package decision

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/predicates"
)

// EachError returns a classifier for functions that make several requests and join their
// errors ([errors.Join], or several %w). A retry repeats all requests, so it depends on
// each error. classify gets each error with its own stage ([StageOf]), as if it were the
// only one. The answer is the [WeakestOf] their reasons, and the latest stage.
//
// A reason may have two permissions: [predicates.Reason.AllowsNonIdempotentRetry] and
// [predicates.Reason.AlwaysRetry]. The table shows how each error changes the permissions
// that the answer would have by the other errors:
//
//	if an error                                     the permissions of the other errors
//	has a reason                                    stay if this reason has them, too
//	has a rejection                                 stay: its request had no effect
//	has no reason, or no classifier knows it        are lost: it may have had an effect
//	has no reason, but is in stage ClientDispatch   stay: it had no effect
//	is harmless                                     stay
//
// The errors in harmless describe no request, such as the sentinel in fmt.Errorf("%w:
// %w", ErrLookup, err). A branch is harmless if its innermost error matches one by
// [errors.Is]. Wrappers of a join, such as predicates.WithReason or a
// [*predicates.StageError], apply to all its errors.
//
// Policies wrap every classifier like this, and the classifiers for weir's clients do it
// themselves. EachError panics if classify or an error in harmless is nil.
func EachError[OUT any](classify predicates.Classifier[OUT], harmless ...error) predicates.Classifier[OUT] {
	if classify == nil {
		panic("decision: EachError: nil classifier")
	}
	for i, err := range harmless {
		if err == nil {
			panic(fmt.Sprintf("decision: EachError: nil error at index %d", i))
		}
	}
	harmless = slices.Clone(harmless) // the caller may reuse its slice
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		switch {
		case a.Err == nil:
			return classify(a)
		case !Joins(a.Err):
			a.Stage = stageOfOne(a.Err, a.Stage)
			return classify(a)
		}
		reported := a.Stage
		a.Stage = StageOf(a.Err, reported) // if classify panics
		var (
			reasons []predicates.Reason
			stages  stages
			known   bool
		)
		for _, err := range Branches(a.Err) {
			if isHarmless(err, harmless) {
				continue
			}
			one := *a
			one.Err, one.Stage = err, stageOfOne(err, reported)
			r, ok := classify(&one)
			known = known || ok
			if !ok {
				r = predicates.Reason{}
			}
			if !r.IsZero() || one.Stage != predicates.ClientDispatch {
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

// isHarmless reports whether the innermost error of err matches one in harmless, and its
// stage is not later than ClientDispatch.
func isHarmless(err error, harmless []error) bool {
	if len(harmless) == 0 || stageOfOne(err, predicates.Unreported) > predicates.ClientDispatch {
		return false
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return slices.ContainsFunc(harmless, func(target error) bool { return errors.Is(err, target) })
}

// WeakestOf returns the reason for a retry that repeats several requests. It is the
// reason that allows least. Of equal reasons, it is the first.
//
// A zero reason belongs to a request that may have had an effect and perhaps must not be
// repeated. With it, the other reasons lose their permissions, and the result has only
// their name.
//
// Rejections do not change the permissions of others, because their requests had no
// effect. The result is a rejection if all reasons are, and zero if some are zero and the
// others are rejections.
func WeakestOf(reasons ...predicates.Reason) predicates.Reason {
	var weakest, rejection predicates.Reason
	for _, r := range reasons {
		switch {
		case r.IsZero():
		case r.IsRejection():
			if rejection.IsZero() {
				rejection = r
			}
		case weakest.IsZero() || rank(r) < rank(weakest):
			weakest = r
		}
	}
	unknown := slices.ContainsFunc(reasons, predicates.Reason.IsZero)
	switch {
	case weakest.IsZero() && !unknown:
		return rejection
	case rank(weakest) > 0 && unknown:
		return predicates.NewReason(weakest.Name(), false, false)
	}
	return weakest
}

// rank orders reasons by their permissions.
func rank(r predicates.Reason) int {
	switch {
	case r.AlwaysRetry():
		return 2
	case r.AllowsNonIdempotentRetry():
		return 1
	default:
		return 0
	}
}

// StageOf returns the stage of an attempt that ended with err, which may be nil. It is
// the later of two stages: reported, which may be Unreported, and the stage of the
// outermost [*predicates.StageError].
//
// Of joined errors the latest stage counts. Unreported beside ClientDispatch counts as
// NetworkTime, because that request may have been sent.
func StageOf(err error, reported predicates.Stage) predicates.Stage {
	if !Joins(err) {
		return stageOfOne(err, reported)
	}
	var all stages
	for _, branch := range Branches(err) {
		all.add(stageOfOne(branch, reported))
	}
	return all.latest()
}

// stageOfOne is StageOf for one error.
func stageOfOne(err error, reported predicates.Stage) predicates.Stage {
	if e, ok := errors.AsType[*predicates.StageError](err); ok {
		return max(reported, e.Stage)
	}
	return reported
}

// stages are the stages of joined errors.
type stages struct {
	n             int
	max           predicates.Stage
	hasUnreported bool
}

func (s *stages) add(stage predicates.Stage) {
	s.n++
	s.max = max(s.max, stage)
	s.hasUnreported = s.hasUnreported || stage == predicates.Unreported
}

// latest returns the latest stage. Unreported beside ClientDispatch is NetworkTime.
func (s *stages) latest() predicates.Stage {
	if s.hasUnreported && s.max == predicates.ClientDispatch {
		return predicates.NetworkTime
	}
	return s.max
}

// Never is the pushback of a server that must not be called again.
const Never = time.Duration(-1)

// PushbackOf returns the longest wait that an attempt demands: by its results or, if it
// has failed, by its error and the errors that it joins. ok is false without a demand.
func PushbackOf[OUT any](a *predicates.Attempt[OUT]) (delay time.Duration, ok bool) {
	if a.Err == nil {
		for _, result := range a.Results {
			if p, is := any(result).(predicates.ServerPushback); is {
				delay, ok = longerWait(delay, ok, p)
			}
		}
		return delay, ok
	}
	for _, err := range Branches(a.Err) {
		// The outermost error of a branch that demands a wait counts.
		for demands := false; err != nil && !demands; err = errors.Unwrap(err) {
			if p, is := AsBranch[predicates.ServerPushback](err); is {
				_, demands = p.RetryPushback()
				if demands {
					delay, ok = longerWait(delay, ok, p)
				}
			}
		}
	}
	return delay, ok
}

// longerWait returns the longer of two waits: delay, which counts if ok is set, and the
// wait that p demands, if it demands one.
func longerWait(delay time.Duration, ok bool, p predicates.ServerPushback) (time.Duration, bool) {
	d, demands := p.RetryPushback()
	switch {
	case !demands:
		return delay, ok
	case d < 0 || ok && delay < 0:
		return Never, true
	default:
		return max(delay, d), true
	}
}
