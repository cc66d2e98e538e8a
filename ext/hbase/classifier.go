package hbase

import (
	"context"
	"errors"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/region"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// Classifier returns a classifier of the errors of gohbase and of errors with a reason
// (predicates.WithReason), with the table of the package documentation.
func Classifier[OUT any]() predicates.Classifier[OUT] {
	named := predicates.Named[OUT]()
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Err == nil {
			return predicates.Reason{}, false
		}
		reason, ok := named(a)
		if !ok {
			f := find(a.Err)
			reason, ok = f.reasonAt(a.Stage), f.isKnown()
			if f.isRefusal() && a.Stage == predicates.Unreported {
				a.Stage = predicates.ResponseReceived
			}
		}
		if a.InDoubt {
			reason = weakened(reason)
		}
		return reason, ok
	})
}

type finding struct {
	reason predicates.Reason // zero if the error is final
	isOnly bool              // the error is about the only request of its call
}

func (f finding) isKnown() bool { return !f.reason.IsZero() }

func (f finding) isRefusal() bool {
	return f.isOnly && (f.reason.IsRejection() || f.reason.AllowsNonIdempotentRetry())
}

func (f finding) reasonAt(stage predicates.Stage) predicates.Reason {
	switch {
	case f.isOnly && stage == predicates.ClientDispatch && (f.reason == netretry.TimedOut || f.reason == netretry.ConnectionLost):
		return netretry.NotSent
	case !f.isOnly:
		return weakened(f.reason)
	}
	return f.reason
}

// find returns the meaning of err, a single error, perhaps wrapped.
func find(err error) finding {
	_, isOnly := errors.AsType[*onlyRequestError](err)
	return finding{reason: reasonOf(err), isOnly: isOnly}
}

func reasonOf(err error) predicates.Reason {
	switch {
	case errors.Is(err, gohbase.TableNotFound):
		return tableNotFound
	case errors.Is(err, gohbase.ErrCannotFindRegion):
		return regionNotFound
	case errors.Is(err, context.DeadlineExceeded):
		return netretry.TimedOut
	}
	class := exceptionOf(err)
	if class != "" {
		return exceptions[class]
	}
	_, isLost := errors.AsType[region.ServerError](err)
	if isLost {
		return netretry.ConnectionLost
	}
	_, isNotServing := errors.AsType[region.NotServingRegionError](err)
	if isNotServing {
		return notServingRegion
	}
	return predicates.Reason{}
}
