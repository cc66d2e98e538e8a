package couchbase

import "github.com/weirflow/weir/predicates"

// The reasons of RFC 0049. Three are always retried, and two do not allow repeating a
// non-idempotent request.
var (
	// Unknown: an unexpected error.
	Unknown = predicates.Unknown
	// SocketNotAvailable: the socket to write to is not available.
	SocketNotAvailable = predicates.NewReason("SOCKET_NOT_AVAILABLE", true, false)
	// ServiceNotAvailable: the service on a node is not available.
	ServiceNotAvailable = predicates.NewReason("SERVICE_NOT_AVAILABLE", true, false)
	// NodeNotAvailable: the node to send to is not available.
	NodeNotAvailable = predicates.NewReason("NODE_NOT_AVAILABLE", true, false)
	// KVNotMyVBucket: the node is not responsible for the key. Always retried.
	KVNotMyVBucket = predicates.NewReason("KV_NOT_MY_VBUCKET", true, true)
	// KVCollectionOutdated: the collection is not known by this id. Always retried.
	KVCollectionOutdated = predicates.NewReason("KV_COLLECTION_OUTDATED", true, true)
	// KVErrorMapRetryIndicated: the server's error map allows a retry of an unknown
	// status.
	KVErrorMapRetryIndicated = predicates.NewReason("KV_ERROR_MAP_RETRY_INDICATED", true, false)
	// KVLocked: the document is locked.
	KVLocked = predicates.NewReason("KV_LOCKED", true, false)
	// KVTemporaryFailure: the server cannot execute the request now.
	KVTemporaryFailure = predicates.NewReason("KV_TEMPORARY_FAILURE", true, false)
	// KVSyncWriteInProgress: another durable write of the document is in progress.
	KVSyncWriteInProgress = predicates.NewReason("KV_SYNC_WRITE_IN_PROGRESS", true, false)
	// KVSyncWriteReCommitInProgress: a durable write is being committed again.
	KVSyncWriteReCommitInProgress = predicates.NewReason("KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS", true, false)
	// ServiceResponseCodeIndicated: the response code of a service allows a retry.
	ServiceResponseCodeIndicated = predicates.NewReason("SERVICE_RESPONSE_CODE_INDICATED", true, false)
	// SocketClosedWhileInFlight: the socket was closed before the response came.
	SocketClosedWhileInFlight = predicates.NewReason("SOCKET_CLOSED_WHILE_IN_FLIGHT", false, false)
	// CircuitBreakerOpen: the circuit breaker of the endpoint is open.
	CircuitBreakerOpen = predicates.CircuitBreakerOpen
	// QueryPreparedStatementFailure: the prepared statement has become invalid.
	QueryPreparedStatementFailure = predicates.NewReason("QUERY_PREPARED_STATEMENT_FAILURE", true, false)
	// QueryIndexNotFound: the index is not known to the node yet.
	QueryIndexNotFound = predicates.NewReason("QUERY_INDEX_NOT_FOUND", true, false)
	// AnalyticsTemporaryFailure: analytics cannot execute the request now.
	AnalyticsTemporaryFailure = predicates.NewReason("ANALYTICS_TEMPORARY_FAILURE", true, false)
	// SearchTooManyRequests: search is overloaded.
	SearchTooManyRequests = predicates.NewReason("SEARCH_TOO_MANY_REQUESTS", true, false)
	// ViewsTemporaryFailure: views cannot execute the request now.
	ViewsTemporaryFailure = predicates.NewReason("VIEWS_TEMPORARY_FAILURE", true, false)
	// ViewsNoActivePartition: the node lacks an active partition. Always retried.
	ViewsNoActivePartition = predicates.NewReason("VIEWS_NO_ACTIVE_PARTITION", true, true)
)

// Reasons returns the reasons of RFC 0049, in its order, for code that reads names.
func Reasons() []predicates.Reason {
	return []predicates.Reason{
		Unknown,
		SocketNotAvailable,
		ServiceNotAvailable,
		NodeNotAvailable,
		KVNotMyVBucket,
		KVCollectionOutdated,
		KVErrorMapRetryIndicated,
		KVLocked,
		KVTemporaryFailure,
		KVSyncWriteInProgress,
		KVSyncWriteReCommitInProgress,
		ServiceResponseCodeIndicated,
		SocketClosedWhileInFlight,
		CircuitBreakerOpen,
		QueryPreparedStatementFailure,
		QueryIndexNotFound,
		AnalyticsTemporaryFailure,
		SearchTooManyRequests,
		ViewsTemporaryFailure,
		ViewsNoActivePartition,
	}
}
