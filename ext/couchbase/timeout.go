package couchbase

import (
	"errors"
	"slices"

	"github.com/couchbase/gocb/v2"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// queryTimedOut is the code of a timeout that the query service reports during the
// execution. gocb calls it unambiguous even if the statement changes documents.
const queryTimedOut = 1080

// waitForReplicas is the operation of the options PersistTo and ReplicateTo. gocb calls
// its timeout unambiguous although it follows a write.
const waitForReplicas = "WaitForConfigSnapshot"

// ofTimeout returns the meaning of a timeout of gocb. Its reason has the name of the
// reason for which gocb has retried, if any. It allows a retry of calls that must not
// happen twice only if the operation was a read.
func ofTimeout(err error) finding {
	reason := reasonOfAll(retryReasons(err))
	isRead := isUnambiguous(err)
	switch {
	case !reason.IsZero():
	case wasNotDispatched(err):
		reason = nodeNotAvailable
	case isRead:
		reason = unambiguousTimeout
	default:
		reason = netretry.TimedOut
	}
	if !isRead {
		reason = weakened(reason)
	}
	return finding{reason, predicates.NetworkTime}
}

// wasNotDispatched reports whether a key-value request had not been written to a
// connection when gocb created its error. The errors of couchbase2:// have neither
// address nor number. The request may still have been sent: gocb cancels it only after it
// has created the error.
func wasNotDispatched(err error) bool {
	e, ok := errors.AsType[*gocb.TimeoutError](err)
	return ok && e.LastDispatchedTo == "" && e.Opaque == "0"
}

// isUnambiguous reports whether gocb calls the timeout unambiguous because the operation
// was a read. Not counted are timeouts between gocb's own retries, timeouts that the
// query service reports, and the bare ErrUnambiguousTimeout of a query as a transaction.
func isUnambiguous(err error) bool {
	if !errors.Is(err, gocb.ErrUnambiguousTimeout) || wasRepeatedInDoubt(retryReasons(err)) {
		return false
	}
	if e, ok := errors.AsType[*gocb.TimeoutError](err); ok {
		return e.OperationID != waitForReplicas
	}
	if e, ok := errors.AsType[*gocb.QueryError](err); ok {
		return !slices.ContainsFunc(e.Errors, func(d gocb.QueryErrorDesc) bool { return d.Code == queryTimedOut })
	}
	_, isAnalytics := errors.AsType[*gocb.AnalyticsError](err)
	_, isSearch := errors.AsType[*gocb.SearchError](err)
	_, isView := errors.AsType[*gocb.ViewError](err)
	_, isManagement := errors.AsType[*gocb.HTTPError](err)
	return isAnalytics || isSearch || isView || isManagement
}

// wasRepeatedInDoubt reports whether gocb itself has repeated a request that may have
// taken effect. [NoRetries] prevents it.
func wasRepeatedInDoubt(retried []gocb.RetryReason) bool {
	return slices.ContainsFunc(retried, func(r gocb.RetryReason) bool {
		return !r.AllowsNonIdempotentRetry() || slices.Contains(inDoubtReasons, r)
	})
}

// inDoubtReasons are reasons for which gocb repeats a request that may have taken effect:
// an HTTP request that timed out after it was sent (SOCKET_NOT_AVAILABLE), a request of
// couchbase2:// whose connection ended, and a statement that failed during its execution.
var inDoubtReasons = []gocb.RetryReason{
	gocb.SocketNotAvailableRetryReason,
	gocb.ServiceNotAvailableRetryReason,
	gocb.QueryErrorRetryable,
	gocb.QueryIndexNotFoundRetryReason,
	gocb.AnalyticsTemporaryFailureRetryReason,
}

func retryReasons(err error) []gocb.RetryReason {
	if e, ok := errors.AsType[*gocb.TimeoutError](err); ok {
		return e.RetryReasons
	}
	if e, ok := errors.AsType[*gocb.KeyValueError](err); ok {
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
