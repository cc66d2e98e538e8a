package couchbase

import (
	"errors"
	"slices"

	"github.com/couchbase/gocb/v2"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// queryTimedOut is the code with which the query service reports a timeout while it
// executes a statement. gocb calls it unambiguous even if the statement changes
// documents.
const queryTimedOut = 1080

// ofTimeout returns the meaning of a timeout of gocb. Its reason has the name of the
// reason for which gocb has retried, if it has.
func ofTimeout(err error) finding {
	retried := retryReasons(err)
	reason := reasonOfAll(retried)
	switch {
	case wasNeverDispatched(err):
		if reason.IsZero() {
			reason = nodeNotAvailable
		}
		return finding{reason, predicates.ClientDispatch}
	case errors.Is(err, gocb.ErrUnambiguousTimeout) && !mayHaveTakenEffect(err, retried):
		if reason.IsZero() {
			reason = unambiguousTimeout
		}
		return finding{reason, predicates.NetworkTime}
	}
	if reason.IsZero() {
		reason = netretry.TimedOut
	}
	return finding{weakened(reason), predicates.NetworkTime}
}

// wasNeverDispatched reports whether a key-value request has not been written to a
// connection. gocb notes the address before it writes, and gives the request a number.
// The errors of couchbase2:// have neither address nor number.
func wasNeverDispatched(err error) bool {
	e, ok := errors.AsType[*gocb.TimeoutError](err)
	return ok && e.LastDispatchedTo == "" && e.Opaque == "0"
}

// mayHaveTakenEffect reports whether a timeout that gocb calls unambiguous is ambiguous.
// If gocb retries HTTP requests itself, it treats a request that timed out as a request
// that had no connection.
func mayHaveTakenEffect(err error, retried []gocb.RetryReason) bool {
	if slices.Contains(retried, gocb.SocketNotAvailableRetryReason) {
		return true
	}
	e, ok := errors.AsType[*gocb.QueryError](err)
	return ok && slices.ContainsFunc(e.Errors, func(d gocb.QueryErrorDesc) bool { return d.Code == queryTimedOut })
}

// retryReasons returns the reasons for which gocb has retried before err.
func retryReasons(err error) []gocb.RetryReason {
	if e, ok := errors.AsType[*gocb.TimeoutError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.QueryError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.AnalyticsError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.SearchError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.ViewError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.HTTPError](err); ok {
		return e.RetryReasons
	}
	return nil
}
