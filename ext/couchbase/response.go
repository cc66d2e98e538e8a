package couchbase

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10/memd"

	"github.com/weirflow/weir/predicates"
)

// byStatus are the reasons of statuses of the key-value service.
var byStatus = map[memd.StatusCode]predicates.Reason{
	memd.StatusNotMyVBucket:                ReasonOf(gocb.KVNotMyVBucketRetryReason),
	memd.StatusLocked:                      ReasonOf(gocb.KVLockedRetryReason),
	memd.StatusBusy:                        ReasonOf(gocb.KVTemporaryFailureRetryReason),
	memd.StatusTmpFail:                     ReasonOf(gocb.KVTemporaryFailureRetryReason),
	memd.StatusSyncWriteInProgress:         ReasonOf(gocb.KVSyncWriteInProgressRetryReason),
	memd.StatusSyncWriteReCommitInProgress: ReasonOf(gocb.KVSyncWriteRecommitInProgressRetryReason),
}

// refusals are ranges of statuses of requests that were refused for good, without effect.
var refusals = [...]struct{ first, last memd.StatusCode }{
	{memd.StatusKeyNotFound, memd.StatusBadDelta},
	{memd.StatusNoBucket, memd.StatusNoBucket},
	{memd.StatusNotLocked, memd.StatusNotLocked},
	{memd.StatusAuthStale, memd.StatusAuthError},
	{memd.StatusRangeError, memd.StatusRangeError},
	{memd.StatusAccessError, memd.StatusAccessError},
	{memd.StatusUnknownCommand, memd.StatusUnknownCommand},
	{memd.StatusNotSupported, memd.StatusNotSupported},
	{memd.StatusCollectionUnknown, memd.StatusCollectionUnknown},
	{memd.StatusScopeUnknown, memd.StatusScopeUnknown},
	{memd.StatusDurabilityInvalidLevel, memd.StatusDurabilityImpossible},
	{memd.StatusSubDocPathNotFound, memd.StatusSubDocBadMulti},
	{memd.StatusSubDocXattrInvalidFlagCombo, memd.StatusSubDocXattrCannotModifyVAttr},
	{memd.StatusSubDocMultiPathFailureDeleted, memd.StatusSubDocMultiPathFailureDeleted},
}

// ofResponse returns the meaning of an error with which a service answered. For other
// errors the stage of the finding is not ResponseReceived.
func ofResponse(err error) finding {
	if e, ok := errors.AsType[*gocb.KeyValueError](err); ok && e.StatusCode != memd.StatusSuccess {
		return answered(ofKeyValue(e))
	}
	if e, ok := errors.AsType[*gocb.QueryError](err); ok && len(e.Errors) > 0 {
		return answered(ofQuery(e))
	}
	if e, ok := errors.AsType[*gocb.AnalyticsError](err); ok && len(e.Errors) > 0 {
		return answered(ofAnalytics(e))
	}
	if e, ok := errors.AsType[*gocb.SearchError](err); ok && e.HTTPStatusCode != 0 {
		return answered(ofSearch(e))
	}
	if e, ok := errors.AsType[*gocb.ViewError](err); ok && e.HTTPStatusCode != 0 {
		return answered(ofView(e))
	}
	return finding{}
}

func answered(reason predicates.Reason) finding { return finding{reason, predicates.ResponseReceived} }

// ofKeyValue returns the reason of a response of the key-value service, or the zero
// Reason. A status that gocb has retried because of the server's error map is the one
// that [NoRetries] makes it retry.
func ofKeyValue(e *gocb.KeyValueError) predicates.Reason {
	isRefusal := errors.Is(e, gocb.ErrCasMismatch) // also 0x09 as the answer to Unlock
	for _, r := range refusals {
		isRefusal = isRefusal || r.first <= e.StatusCode && e.StatusCode <= r.last
	}
	if isRefusal {
		return predicates.NewRejection(fmt.Sprintf("KV_STATUS_0x%02x", uint16(e.StatusCode)))
	}
	if reason, ok := byStatus[e.StatusCode]; ok {
		return reason
	}
	if slices.Contains(e.RetryReasons, gocb.KVErrMapRetryReason) {
		return errorMapIndicated
	}
	return predicates.Reason{}
}

// ofQuery returns the reason of a response of the query service, or the zero Reason if an
// error has no reason. The first error names the reason, and all must allow it.
func ofQuery(e *gocb.QueryError) predicates.Reason {
	first := queryReason(e.Errors[0])
	if first.IsZero() && len(e.Errors) == 1 && slices.Contains(refusedStatements, e.Errors[0].Code) {
		return predicates.NewRejection(fmt.Sprintf("QUERY_ERROR_%d", e.Errors[0].Code))
	}
	for _, other := range e.Errors[1:] {
		reason := queryReason(other)
		switch {
		case reason.IsZero():
			return predicates.Reason{}
		case !reason.AllowsNonIdempotentRetry():
			first = weakened(first)
		}
	}
	return first
}

// refusedStatements are errors of the query service before it executes a statement: of
// parsing, planning, prepared statements, and authorization. gocb's groups of codes do
// not prove this: planning failures include 4036, a limit reached during the execution,
// and authentication failures include errors of functions (101xx), such as 10109 after a
// failed function, which may have changed documents.
var refusedStatements = []uint32{
	3000,
	4000, 4010, 4020, 4100, 4110, 4210,
	4060, 4080, 4090,
	10000, 13014,
}

const queueFull = 1201

// queryReason returns the reason of an error of the query service, or the zero Reason.
// 12016, a missing index, is marked as retryable, although a retry fails. A statement may
// have changed documents before a retryable error, or before it missed an index.
func queryReason(e gocb.QueryErrorDesc) predicates.Reason {
	switch {
	case e.Code == 4040 || e.Code == 4050 || e.Code == 4070:
		return ReasonOf(gocb.QueryPreparedStatementFailureRetryReason)
	case e.Code == 5000 && strings.Contains(e.Message, "queryport.indexNotFound"):
		return weakened(ReasonOf(gocb.QueryIndexNotFoundRetryReason))
	case e.Retry && (e.Code == queueFull || slices.Contains(refusedStatements, e.Code)):
		return queryErrorRetryable
	case e.Retry && e.Code != 12016:
		return weakened(queryErrorRetryable)
	}
	return predicates.Reason{}
}

// ofAnalytics returns the reason of a response of the analytics service, or the zero
// Reason if an error is not listed. Before the execution, the service refuses statements
// during a rebalance (23003), and while its queue is full (23007). It may be unavailable
// (23000) at any time.
func ofAnalytics(e *gocb.AnalyticsError) predicates.Reason {
	reason := ReasonOf(gocb.AnalyticsTemporaryFailureRetryReason)
	for _, d := range e.Errors {
		switch d.Code {
		case 23003, 23007:
		case 23000:
			reason = weakened(reason)
		default:
			return predicates.Reason{}
		}
	}
	return reason
}

func ofSearch(e *gocb.SearchError) predicates.Reason {
	if e.HTTPStatusCode == 429 {
		return searchTooMany
	}
	return predicates.Reason{}
}

// viewStatuses are the statuses of VIEWS_TEMPORARY_FAILURE without a condition.
var viewStatuses = []int{300, 301, 303, 307, 401, 408, 409, 412, 416, 417, 501, 502, 503, 504}

func ofView(e *gocb.ViewError) predicates.Reason {
	isTemporary := slices.Contains(viewStatuses, e.HTTPStatusCode)
	switch e.HTTPStatusCode {
	case 302:
		return viewsNoActivePartition
	case 404:
		isTemporary = strings.Contains(viewText(e), `"reason":"missing"`)
	case 500:
		isTemporary = !isPermanent(viewText(e))
	}
	if isTemporary {
		return viewsTemporaryFailure
	}
	return predicates.Reason{}
}

func isPermanent(body string) bool {
	isListed := strings.Contains(body, "{not_found, missing_named_view}") || strings.Contains(body, `"badarg"`)
	return isListed && strings.Contains(body, "error")
}

// viewText returns the body of the response. For a missing view gocb keeps only the
// members of the JSON object, whose names are in SourceNode.
func viewText(e *gocb.ViewError) string {
	if e.ErrorText != "" {
		return e.ErrorText
	}
	members := make([]string, 0, len(e.Errors))
	for _, d := range e.Errors {
		members = append(members, fmt.Sprintf("%q:%q", d.SourceNode, d.Message))
	}
	return strings.Join(members, ",")
}
