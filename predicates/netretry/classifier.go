package netretry

import (
	"errors"
	"net/url"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// Classifier returns a classifier of connection errors, according to the table of the
// package. If the error of a dial proves that the request was not sent, it sets the stage
// of the attempt to ClientDispatch.
func Classifier[OUT any]() predicates.Classifier[OUT] { return ClassifierOf[OUT](KindOf) }

// ClassifierOf is [Classifier] with kind in place of [KindOf], for clients whose errors
// KindOf does not know. It panics if kind is nil.
func ClassifierOf[OUT any](kind func(err error) Kind) predicates.Classifier[OUT] {
	if kind == nil {
		panic("netretry: ClassifierOf: nil kind")
	}
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Err == nil {
			return predicates.Reason{}, false
		}
		what := kind(a.Err)
		if what == Dial && a.Stage == predicates.Unreported && !redirectable(a.Err) {
			a.Stage = predicates.ClientDispatch
		}
		reason, ok := reasons[what]
		if a.Stage == predicates.ClientDispatch {
			return reason.unsent, ok
		}
		return reason.sent, ok
	})
}

// reasons by kind, if the request was certainly not sent, and otherwise.
var reasons = map[Kind]struct{ unsent, sent predicates.Reason }{
	Dial:    {NotConnected, HopNotConnected},
	Lost:    {NotSent, ConnectionLost},
	Timeout: {NotSent, TimedOut},
}

// redirectable reports whether err comes from a client that may have followed redirects.
func redirectable(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok
}
