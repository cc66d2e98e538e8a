package couchbase

import (
	"github.com/couchbase/gocb/v2"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

var (
	pipelineOverloaded     = predicates.NewReason("PIPELINE_OVERLOADED", true, false)
	unambiguousTimeout     = predicates.NewReason("UNAMBIGUOUS_TIMEOUT", true, false)
	viewsTemporaryFailure  = predicates.NewReason("VIEWS_TEMPORARY_FAILURE", true, false)
	viewsNoActivePartition = predicates.NewReason("VIEWS_NO_ACTIVE_PARTITION", true, true)
)

var (
	socketNotAvailable   = ReasonOf(gocb.SocketNotAvailableRetryReason)
	socketClosedInFlight = ReasonOf(gocb.SocketCloseInFlightRetryReason)
	serviceNotAvailable  = ReasonOf(gocb.ServiceNotAvailableRetryReason)
	nodeNotAvailable     = ReasonOf(gocb.NodeNotAvailableRetryReason)
	circuitBreakerOpen   = ReasonOf(gocb.CircuitBreakerOpenRetryReason)
	errorMapIndicated    = ReasonOf(gocb.KVErrMapRetryReason)
	queryErrorRetryable  = ReasonOf(gocb.QueryErrorRetryable)
	searchTooMany        = ReasonOf(gocb.SearchTooManyRequestsRetryReason)
)

// ReasonOf returns the reason with the name and properties of a reason of gocb, such as
// gocb.KVLockedRetryReason, for your own tables and strategies. It returns the zero
// Reason if r is nil or has no name.
func ReasonOf(r gocb.RetryReason) predicates.Reason {
	if r == nil || r.Description() == "" {
		return predicates.Reason{}
	}
	allowsNonIdempotent := r.AllowsNonIdempotentRetry()
	return predicates.NewReason(r.Description(), allowsNonIdempotent, allowsNonIdempotent && r.AlwaysRetry())
}

// Reasons returns the reasons of RFC 0049 in its order, then the other reasons of
// [Classifier], for code that reads names. Rejections, named KV_STATUS_ and the status,
// or QUERY_ERROR_ and the code, are not included.
func Reasons() []predicates.Reason {
	return []predicates.Reason{
		ReasonOf(gocb.UnknownRetryReason),
		socketNotAvailable,
		serviceNotAvailable,
		nodeNotAvailable,
		ReasonOf(gocb.KVNotMyVBucketRetryReason),
		ReasonOf(gocb.KVCollectionOutdatedRetryReason),
		errorMapIndicated,
		ReasonOf(gocb.KVLockedRetryReason),
		ReasonOf(gocb.KVTemporaryFailureRetryReason),
		ReasonOf(gocb.KVSyncWriteInProgressRetryReason),
		ReasonOf(gocb.KVSyncWriteRecommitInProgressRetryReason),
		ReasonOf(gocb.ServiceResponseCodeIndicatedRetryReason),
		socketClosedInFlight,
		circuitBreakerOpen,
		ReasonOf(gocb.QueryPreparedStatementFailureRetryReason),
		ReasonOf(gocb.QueryIndexNotFoundRetryReason),
		ReasonOf(gocb.AnalyticsTemporaryFailureRetryReason),
		searchTooMany,
		viewsTemporaryFailure,
		viewsNoActivePartition,

		queryErrorRetryable,
		pipelineOverloaded,
		unambiguousTimeout,
		netretry.TimedOut,
	}
}

// reasonOfAll returns the reason that allows least, or the zero Reason.
func reasonOfAll(reasons []gocb.RetryReason) predicates.Reason {
	all := make([]predicates.Reason, 0, len(reasons))
	for _, r := range reasons {
		if reason := ReasonOf(r); !reason.IsZero() {
			all = append(all, reason)
		}
	}
	return decision.WeakestOf(all...)
}

// weakened returns a reason with the name of r that does not allow a retry of calls that
// must not happen twice.
func weakened(r predicates.Reason) predicates.Reason {
	return decision.WeakestOf(r, predicates.Reason{})
}
