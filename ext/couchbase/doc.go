// Package couchbase connects gocb, the Go SDK of Couchbase, to weir's retries.
// [NoRetries] turns off gocb's own retries, and [Classifier] names the reason of each
// error by RFC 0049 of the Couchbase SDKs, "Retry Handling", so that only the operator
// retries:
//
//	cluster, err := gocb.Connect("couchbase://127.0.0.1", gocb.ClusterOptions{
//		Username: user, Password: password,
//		RetryStrategy: couchbase.NoRetries(),
//	})
//	…
//	policy := strategies.ReasonAware(couchbase.Classifier[Row](), nil)
//
// Pass the context of the call to gocb (gocb.GetOptions.Context), and limit an attempt by
// gocb's Timeout. gocb's default for key-value operations is 2.5 s. A timeout of gocb has
// more details than asyncop.WithAttemptTimeout, whose error is TIMED_OUT_IN_FLIGHT. If a
// deadline of your own context ends a call, gocb returns ErrRequestCanceled, which is
// final. After an attempt timeout the operator ignores that error.
//
// # Documents that do not exist
//
// ErrDocumentNotFound is a rejection (KV_STATUS_0x01), which fails the element. To
// continue without the document, return asyncop.ErrNoResult: the attempt completes with
// an empty result, which Classifier does not retry. To retry it, give it a reason:
//
//	absent := predicates.NewReason("ABSENT", true, false)
//	classify := predicates.Classifiers(
//		predicates.ByResult(predicates.EmptyResult[Row], absent),
//		couchbase.Classifier[Row]())
//	policy := strategies.ReasonAware(classify, nil).Idempotent().
//		WithMaxRetriesFor(absent, 3)
//
// After three retries the element leaves without a result. Without a limit it is retried
// until its timeout, and fails.
//
// # Reasons
//
// Reasons have the names of the RFC and of gocb; see [ReasonOf]. "n" marks reasons that
// allow a retry of calls that must not happen twice, "a" reasons that are always retried,
// until the element times out.
//
//	error of gocb                    reason                              n  a  stage
//	status 0x07                      KV_NOT_MY_VBUCKET                   n  a  response
//	status 0x09, except of Unlock    KV_LOCKED                           n     response
//	status 0x85 or 0x86              KV_TEMPORARY_FAILURE                n     response
//	status 0xa2                      KV_SYNC_WRITE_IN_PROGRESS           n     response
//	status 0xa4                      KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS n     response
//	unknown status, in the error map KV_ERROR_MAP_RETRY_INDICATED        n     response
//	query 4040, 4050, 4070           QUERY_PREPARED_STATEMENT_FAILURE    n     response
//	query 5000, index not found      QUERY_INDEX_NOT_FOUND                     response
//	other query code, "retry": true  QUERY_ERROR_RETRYABLE              (n)    response
//	analytics 23000, 23003, 23007    ANALYTICS_TEMPORARY_FAILURE        (n)    response
//	search, HTTP status 429          SEARCH_TOO_MANY_REQUESTS            n     response
//	views, HTTP status 302           VIEWS_NO_ACTIVE_PARTITION           n  a  response
//	views, listed HTTP statuses      VIEWS_TEMPORARY_FAILURE             n     response
//	no connection for the request    SOCKET_NOT_AVAILABLE               (n)    dispatch
//	connection ended while in flight SOCKET_CLOSED_WHILE_IN_FLIGHT             network
//	ErrServiceNotAvailable           SERVICE_NOT_AVAILABLE              (n)    dispatch
//	ErrCircuitBreakerOpen            CIRCUIT_BREAKER_OPEN                n     dispatch
//	ErrOverload                      PIPELINE_OVERLOADED                 n     dispatch
//	timeout, not dispatched          NODE_NOT_AVAILABLE                 (n)    network
//	ErrUnambiguousTimeout            UNAMBIGUOUS_TIMEOUT                 n     network
//	other timeouts                   TIMED_OUT_IN_FLIGHT                       network
//
// "(n)" marks reasons that are "n" only with a proof that the call had no effect:
//
//   - QUERY_ERROR_RETRYABLE: if the code is 1201, a full queue, or a rejection below.
//     Before other errors a statement may have changed documents.
//   - ANALYTICS_TEMPORARY_FAILURE: if all codes are 23003 or 23007.
//   - SOCKET_NOT_AVAILABLE: for key-value operations and queries. Other HTTP requests may
//     follow a redirect from a server that has executed them.
//   - SERVICE_NOT_AVAILABLE: for couchbase://, where no node runs the service. For
//     couchbase2:// a connection may have ended after the server had executed the
//     request.
//   - NODE_NOT_AVAILABLE: for reads. gocb may still send a request after it has created
//     this error.
//
// Without a proof, SOCKET_NOT_AVAILABLE and SERVICE_NOT_AVAILABLE have the stage network.
//
// A timeout after retries inside gocb has the name of their reason, such as
// KV_COLLECTION_OUTDATED for a collection that does not exist. It allows a retry of calls
// that must not happen twice only if the timeout is unambiguous. Timeouts that the query
// service reports itself (1080) count as ambiguous, since documents may have changed. So
// does the timeout of a query as a transaction.
//
// Refusals for good, such as a missing document (0x01), are rejections, named by the
// status: KV_STATUS_0x01. A query refused before its execution, for instance by a syntax
// error, is QUERY_ERROR_3000. These are the codes 3000, 4000, 4010, 4020, 4060, 4080,
// 4090, 4100, 4110, 4210, 10000 and 13014. Other responses are final and have no reason,
// such as ErrDurabilityAmbiguous (0xa3), and errors of functions of the query service
// (101xx), which gocb calls ErrAuthenticationFailure.
//
// # Decisions
//
// Where the RFC is open or contradicts itself, or gocb differs:
//
//   - View status 302, in two rows of the RFC, is VIEWS_NO_ACTIVE_PARTITION.
//   - 0xa4 is KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS, as in the table of reasons, not
//     KV_SYNC_RE_COMMIT_IN_PROGRESS, as in the list of codes.
//   - 0x09 as the answer to Unlock is gocb's ErrCasMismatch, a rejection.
//   - 0x88 reaches the caller only from requests that the RFC excludes; gocb retries the
//     others.
//   - All errors of a query's response must be listed; the first names the reason. gocb
//     checks only the first.
//   - After QUERY_INDEX_NOT_FOUND and "retry": true, the RFC and gocb repeat any
//     statement. Here one that must not happen twice is not repeated, since it may have
//     changed documents.
//   - gocb also retries 4060, 4080 and 4090, which the RFC does not list. Here they are
//     rejections.
//   - An HTTP request that times out after it was sent is TIMED_OUT_IN_FLIGHT, not
//     SOCKET_NOT_AVAILABLE as in gocb.
//   - UNKNOWN and SERVICE_RESPONSE_CODE_INDICATED belong to no error of gocb.
//   - gocb's groups of codes, such as ErrPlanningFailure, do not prove a refusal: they
//     contain errors of the execution (4036, 10109).
//   - If other requests of the call are in doubt ([predicates.Attempt.InDoubt]), or gocb
//     may have repeated a request with an effect, which [NoRetries] prevents, reasons
//     keep their names but do not allow a retry of calls that must not happen twice.
//
// # Idempotent operations
//
// You state which calls may happen twice: see strategies.Policy.Idempotent and
// [predicates.Idempotent]. By the RFC:
//
//	key-value            Get, LookupIn and reads from replicas, but not
//	                     GetAndLock and GetAndTouch, which change the document
//	query, analytics     with Readonly set in their options
//	search, views        all
//	management           reads (HTTP GET)
//
// By the RFC, no write is idempotent. If its answer is lost, a repetition does this:
//
//	Insert                    is refused because of its own document (ErrDocumentExists)
//	Replace with a CAS        is refused because of its own change (ErrCasMismatch)
//	Remove                    is refused (ErrDocumentNotFound), or without a CAS removes a
//	                          document that was inserted later
//	Upsert, Replace           overwrites later writes of others
//	Increment, Append, …      takes effect twice
//
// Such a refusal is a rejection, and the failure stays in doubt: an earlier attempt may
// have taken effect. You may call an Insert idempotent if its id belongs to a single
// element, the document is not removed meanwhile, and your function treats
// ErrDocumentExists as success. If others insert under the same id, read the document and
// compare. You may call an Upsert idempotent if its document has a single writer with at
// most one call at a time.
//
// # Limits
//
// The errors of couchbase2:// (Protostellar) have no statuses. The classifier knows only
// their timeouts and ErrServiceNotAvailable, without "n".
//
// Operations on several documents (Collection.Do) return an error each. Retry only the
// failed operations, unless all of the batch are idempotent.
//
// Errors of transactions (TransactionCommitAmbiguousError, TransactionFailedError, and
// others) are final and have no reason: their cause is about one request, and the
// transaction may have been committed. gocb repeats transactions itself.
//
// All functions are safe for concurrent use.
//
// # Sources
//
// RFC 0049 at revision 13, gocb v2.12.2 with gocbcore v10.9.2, and the codes of
// github.com/couchbase/query at revision 3582af6c.
package couchbase
