package decision

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/predicates"
)

// EachError returns the classifier for functions that make several requests and join their errors ([errors.Join], or several
// %w). One retry repeats them all, so what it may do depends on each: classify sees the errors one by one, each in its own
// stage ([StageOf]), as if it were the attempt's only one. The answer is [WeakestOf] their reasons, in the latest of their
// stages.
//
//	an error of several                             what the others allow
//	has a reason                                    stays, if this one allows it too
//	was refused for good (a rejection)              stays: it has had no effect
//	has none, or no classifier knows it             is lost: it may have had an effect
//	has none, but is in stage ClientDispatch        stays: it has had no effect
//	is one of harmless                              stays
//
// harmless are errors that say nothing about a request, such as the sentinel in fmt.Errorf("%w: %w", ErrLookup, err): those
// that [errors.Is] finds in the innermost error of a branch. What wraps a join speaks for all that it joins, as does the reason
// of predicates.WithReason or the stage of a [*predicates.StageError].
//
// Policies do this to every classifier, and the classifiers of weir's clients do it themselves. EachError panics if classify
// or one of harmless is nil.
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
		a.Stage = StageOf(a.Err, reported) // for the case that classify panics
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
			if known = known || ok; !ok {
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

// isHarmless reports whether one of harmless is the innermost error of err, which does not say itself that something was sent.
func isHarmless(err error, harmless []error) bool {
	if len(harmless) == 0 || stageOfOne(err, predicates.Unreported) > predicates.ClientDispatch {
		return false
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return slices.ContainsFunc(harmless, func(target error) bool { return errors.Is(err, target) })
}

// WeakestOf returns the reason for a retry that repeats several things at once, such as the requests of one call: that of
// reasons which allows least, the first one of several. Where one of them is none, it is known of that one neither that it may
// be repeated nor that it has had no effect, so the others lose what they allow: the result has their name only.
//
// A rejection takes nothing from the others, since it had no effect. The result is a rejection if all are, and none if there
// are no reasons besides rejections and none.
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

// rank orders reasons by what they allow.
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

// StageOf returns the stage of an attempt that ended with err, which may be nil, after the function reported a stage, which may
// be Unreported: the later one of what was reported and what the outermost [*predicates.StageError] says. Of joined errors the
// latest stage counts, where an unreported one is taken for NetworkTime: what one request of a call did not do another may have
// done.
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

// stageOfOne is StageOf without joined errors.
func stageOfOne(err error, reported predicates.Stage) predicates.Stage {
	if e, ok := errors.AsType[*predicates.StageError](err); ok {
		return max(reported, e.Stage)
	}
	return reported
}

// stages are those of joined errors.
type stages struct {
	n       int
	max     predicates.Stage
	unknown bool // one of them is Unreported
}

func (s *stages) add(stage predicates.Stage) {
	s.n++
	s.max = max(s.max, stage)
	s.unknown = s.unknown || stage == predicates.Unreported
}

// latest returns the latest one, where an unreported one beside others is NetworkTime.
func (s *stages) latest() predicates.Stage {
	if s.unknown && s.max == predicates.ClientDispatch {
		return predicates.NetworkTime
	}
	return s.max
}

// Never as a pushback is a server's demand not to be called again.
const Never = time.Duration(-1)

// PushbackOf returns the hardest of the demands that came with the outcome of a: those of its error, in every branch of a
// joined one, or of its results. An error or a result that demands nothing leaves it to the others.
func PushbackOf[OUT any](a *predicates.Attempt[OUT]) (delay time.Duration, ok bool) {
	if a.Err == nil {
		for _, result := range a.Results {
			if p, is := any(result).(predicates.ServerPushback); is {
				delay, ok = harder(delay, ok, p)
			}
		}
		return delay, ok
	}
	for _, err := range Branches(a.Err) {
		for demands := false; err != nil && !demands; err = errors.Unwrap(err) {
			if p, is := AsBranch[predicates.ServerPushback](err); is {
				if _, demands = p.RetryPushback(); demands {
					delay, ok = harder(delay, ok, p)
				}
			}
		}
	}
	return delay, ok
}

// harder returns the harder one of a demand, if there is one, and that of p.
func harder(delay time.Duration, ok bool, p predicates.ServerPushback) (time.Duration, bool) {
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
