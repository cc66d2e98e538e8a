// Package couchbase connects gocb, the Go SDK of Couchbase, to weir's retries.
// [NoRetries] turns off gocb's own retries, and [Classifier] names the reason of each
// error by the rules of RFC 0049 of the Couchbase SDKs, "Retry Handling", so that a retry
// happens once, in the operator:
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
// more details than asyncop.WithAttemptTimeout, whose error is TIMED_OUT_IN_FLIGHT.
// gocb returns ErrRequestCanceled, which is final, if a deadline of your own context ends
// a call. After an attempt timeout the operator ignores that error, because the attempt
// has already ended.
//
// # Documents that do not exist
//
// ErrDocumentNotFound is a rejection (KV_STATUS_0x01), which fails the element. To
// continue without the document, return asyncop.ErrNoResult instead: the attempt
// completes with an empty result, which Classifier does not retry. To retry it, give it a
// reason:
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
// The name of a reason is the name in the RFC, which gocb also uses. [ReasonOf] returns
// the reason for a variable of gocb, such as gocb.KVLockedRetryReason. "n" marks reasons
// that allow a retry of calls that must not happen twice. "a" marks reasons that are
// always retried, until the element times out.
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
//   - QUERY_ERROR_RETRYABLE: if the code is 1201, a full queue, or a code of the
//     rejections below. A statement may have changed documents before other errors.
//   - ANALYTICS_TEMPORARY_FAILURE: if all codes are 23003 or 23007.
//   - SOCKET_NOT_AVAILABLE: for key-value operations and queries. The HTTP requests of the
//     other services may follow a redirect from a server that has executed them.
//   - SERVICE_NOT_AVAILABLE: for couchbase://, where it means that no node runs the
//     service. For couchbase2:// it may also be a connection that ended after the server
//     had executed the request.
//   - NODE_NOT_AVAILABLE: for reads. gocb may send a request just after it has created the
//     error that shows that the request was not dispatched.
//
// Without a proof, SOCKET_NOT_AVAILABLE and SERVICE_NOT_AVAILABLE have the stage network.
//
// A timeout after retries inside gocb has the name of the reason of these retries, such
// as KV_COLLECTION_OUTDATED for a collection that does not exist. It allows a retry of
// calls that must not happen twice only if the timeout is unambiguous. A timeout that the
// query service reports itself (1080) counts as ambiguous: a statement may have changed
// some documents before it. So does the timeout of a query as a transaction.
//
// Refusals for good, such as a missing document (0x01), are rejections, named by the
// status: KV_STATUS_0x01. A query that was refused before its execution, for instance
// because of a syntax error, is QUERY_ERROR_3000. These are the codes 3000, 4000, 4010,
// 4020, 4060, 4080, 4090, 4100, 4110, 4210, 10000 and 13014. All other responses are final
// and have no reason, such as ErrDurabilityAmbiguous (0xa3), and errors of functions of
// the query service (101xx), which gocb calls ErrAuthenticationFailure.
//
// # Decisions
//
// Where the RFC leaves something open, contradicts itself, or gocb differs:
//
//   - View status 302 is in two rows of the RFC. It is VIEWS_NO_ACTIVE_PARTITION.
//   - 0xa4 is KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS, as in the table of reasons, not
//     KV_SYNC_RE_COMMIT_IN_PROGRESS, as in the list of codes.
//   - 0x09 as the answer to Unlock is gocb's ErrCasMismatch, a rejection.
//   - 0x88 reaches the caller only from requests that the RFC excludes. gocb retries it
//     for all other requests.
//   - All errors of a query's response must be listed; the first names the reason. gocb
//     looks at the first error only.
//   - The RFC and gocb repeat any statement after QUERY_INDEX_NOT_FOUND and "retry": true.
//     Here a statement that must not happen twice is not repeated, since it may have
//     changed documents.
//   - gocb also retries 4060, 4080 and 4090. They are not in the RFC's list, and are
//     rejections here.
//   - An HTTP request that times out after it was sent is TIMED_OUT_IN_FLIGHT. gocb
//     treats it as SOCKET_NOT_AVAILABLE, as if it had not been sent.
//   - UNKNOWN and SERVICE_RESPONSE_CODE_INDICATED belong to no error of gocb.
//   - gocb's group of a code, such as ErrPlanningFailure, is no proof of a refusal: the
//     groups contain errors of the execution (4036, 10109).
//   - After retries of gocb that may have repeated a request with an effect, reasons keep
//     their names but do not allow a retry of calls that must not happen twice. [NoRetries]
//     prevents such retries.
//   - If other requests of the call are in doubt ([predicates.Attempt.InDoubt]), reasons
//     keep their names but do not allow a retry of calls that must not happen twice.
//
// # Idempotent operations
//
// You state which calls may happen twice: see strategies.Policy.Idempotent and
// [predicates.Idempotent]. By the RFC they are:
//
//	key-value            Get, LookupIn and reads from replicas, but not
//	                     GetAndLock and GetAndTouch, which change the document
//	query, analytics     with Readonly set in their options
//	search, views        all
//	management           reads (HTTP GET)
//
// By the RFC, no write is idempotent. If the answer to a write is lost, a repetition does
// this:
//
//	Insert                    is refused because of its own document (ErrDocumentExists)
//	Replace with a CAS        is refused because of its own change (ErrCasMismatch)
//	Remove                    is refused (ErrDocumentNotFound), or without a CAS removes a
//	                          document that was inserted later
//	Upsert, Replace           overwrites later writes of others
//	Increment, Append, …      takes effect twice
//
// Such a refusal is a rejection, named by its status, and the failure stays in doubt: an
// earlier attempt may have taken effect. You may call an Insert idempotent if its id
// belongs to a single element, the document is not removed meanwhile, and your function
// treats ErrDocumentExists as success. If others insert under the same id, read the
// document and compare. You may call an Upsert idempotent if its document has a single
// writer, and at most one call for it runs at a time.
//
// # Limits
//
// The errors of couchbase2:// (Protostellar) have no statuses. The classifier knows only
// their timeouts and ErrServiceNotAvailable, which does not allow a retry of calls that
// must not happen twice.
//
// Operations on several documents (Collection.Do) return an error for each operation.
// Retry only the operations that failed, each with its own error. Never repeat the whole
// batch unless all its operations are idempotent: the others have succeeded.
//
// Errors of transactions (TransactionCommitAmbiguousError, TransactionFailedError, and
// others) are final and have no reason, whatever their cause: it is about one request of
// the transaction, which may have been committed. gocb repeats transactions itself.
//
// All functions are safe for concurrent use.
//
// # Sources
//
// RFC 0049 at revision 13, gocb v2.12.2 with gocbcore v10.9.2, and the codes of
// github.com/couchbase/query at revision 3582af6c.
package couchbase
