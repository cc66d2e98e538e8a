package couchbase

import (
	"context"
	"errors"
	"io"
	"net/url"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// Classifier returns a classifier of the errors of gocb and of errors with a reason
// ([predicates.WithReason]), with the table of the package documentation. It sets the
// attempt's stage if the error proves it. Use it together with [NoRetries].
func Classifier[OUT any]() predicates.Classifier[OUT] {
	named := predicates.Named[OUT]()
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Err == nil {
			return predicates.Reason{}, false
		}
		if reason, ok := named(a); ok {
			if a.InDoubt {
				reason = weakened(reason)
			}
			return reason, true
		}
		f := find(a.Err)
		reason := f.reasonAt(a.Stage)
		if a.InDoubt {
			reason = weakened(reason)
		}
		if f.stage == predicates.ResponseReceived || f.stage == predicates.ClientDispatch && a.Stage == predicates.Unreported {
			a.Stage = f.stage
		}
		return reason, !f.reason.IsZero()
	})
}

type finding struct {
	reason predicates.Reason // zero if the error is final
	stage  predicates.Stage  // that the error proves, or Unreported
}

func (f finding) reasonAt(reported predicates.Stage) predicates.Reason {
	switch {
	case f.stage == predicates.ClientDispatch && reported > predicates.ClientDispatch:
		return weakened(f.reason) // another request of the call was sent
	case f.stage == predicates.NetworkTime && reported == predicates.ClientDispatch:
		return netretry.NotSent
	}
	return f.reason
}

// inDoubt returns the finding without a proof that the call had no effect: its reason
// does not allow a retry of calls that must not happen twice, and a rejection is no
// reason.
func (f finding) inDoubt() finding {
	f.reason = weakened(f.reason)
	if f.stage == predicates.ClientDispatch {
		f.stage = predicates.NetworkTime
	}
	return f
}

// find returns the meaning of err, a single error, perhaps wrapped.
func find(err error) finding {
	switch {
	case isOfTransaction(err): // its cause is about one request of the transaction
		return finding{}
	case errors.Is(err, gocb.ErrRequestCanceled), errors.Is(err, context.Canceled):
		return finding{}
	case errors.Is(err, gocb.ErrTimeout):
		return ofTimeout(err)
	}
	f := ofResponse(err)
	if f.stage != predicates.ResponseReceived {
		f = ofConnection(err)
	}
	if wasRepeatedInDoubt(retryReasons(err)) {
		f = f.inDoubt()
	}
	return f
}

// isOfTransaction reports whether err is about a whole transaction. The transaction may
// have been committed, even if err unwraps to the refusal of one request.
func isOfTransaction(err error) bool {
	_, isAmbiguous := errors.AsType[*gocb.TransactionCommitAmbiguousError](err)
	_, isFailed := errors.AsType[*gocb.TransactionFailedError](err)
	_, isCommitted := errors.AsType[*gocb.TransactionFailedPostCommit](err)
	_, isExpired := errors.AsType[*gocb.TransactionExpiredError](err)
	return isAmbiguous || isFailed || isCommitted || isExpired
}

func ofConnection(err error) finding {
	f := ofClient(err)
	if isOfCouchbase2(err) || mayFollowRedirect(err) {
		return f.inDoubt()
	}
	return f
}

// isOfCouchbase2 reports whether err comes from couchbase2://. There gocb returns
// ErrServiceNotAvailable for every Unavailable of gRPC, even for a connection that ends
// after the server has executed the request.
func isOfCouchbase2(err error) bool {
	_, ok := errors.AsType[*gocb.GenericError](err)
	return ok
}

// mayFollowRedirect reports whether err may be about a redirected HTTP request, which the
// first server may have executed. The query service does not redirect.
func mayFollowRedirect(err error) bool {
	_, isHTTP := errors.AsType[*url.Error](err)
	_, isQuery := errors.AsType[*gocb.QueryError](err)
	return isHTTP && !isQuery
}

// ofClient returns the meaning of a failure without a response if the error of gocb's
// client proves what it seems to.
func ofClient(err error) finding {
	unsent := func(reason predicates.Reason) finding { return finding{reason, predicates.ClientDispatch} }
	switch {
	case errors.Is(err, gocb.ErrCircuitBreakerOpen):
		return unsent(circuitBreakerOpen)
	case errors.Is(err, gocb.ErrOverload):
		return unsent(pipelineOverloaded)
	case errors.Is(err, gocb.ErrServiceNotAvailable):
		return unsent(serviceNotAvailable)
	case errors.Is(err, gocbcore.ErrMemdClientClosed): // returned instead of sending
		return unsent(socketNotAvailable)
	}
	kv, isKV := errors.AsType[*gocb.KeyValueError](err)
	if isKV && errors.Is(err, io.EOF) && kv.LastDispatchedTo == "" {
		return unsent(socketNotAvailable)
	}
	switch netretry.KindOf(err) {
	case netretry.Dial:
		return unsent(socketNotAvailable)
	case netretry.Lost:
		return finding{socketClosedInFlight, predicates.NetworkTime}
	case netretry.Timeout:
		return finding{netretry.TimedOut, predicates.NetworkTime}
	case netretry.Other:
	}
	return finding{}
}
