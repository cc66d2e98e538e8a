// Package couchbase implements RFC 0049 of the Couchbase SDKs, "Retry Handling": its
// reasons, its list of idempotent operations and its list of response codes. It does not
// depend on a client. A function that calls Couchbase returns the errors of this package,
// and an element describes its call by a [Request].
//
// # Vocabulary
//
//	error          what it is                                        listed codes
//	KVError        a response of the key-value service               0x07, 0x09, 0x86, 0x88, 0xa2, 0xa4
//	QueryError     the errors in a response of query or analytics    4040, 4050, 4070, 5000 · 23000, 23003, 23007
//	HTTPError      a response of search or views                     429 · 300…504, with text rules
//
// A failure without a response does not have a code. Add the reason to the error, as in
// predicates.WithReason(err, couchbase.SocketClosedWhileInFlight).
//
//	policy := strategies.ReasonAware(couchbase.Classifier[Row](nil), strategies.BestEffort[Row]())
//
// # Decisions
//
// Where the RFC leaves something open or contradicts itself:
//
//   - View status 302 is in two rows. It is VIEWS_NO_ACTIVE_PARTITION, which is
//     always retried, and not VIEWS_TEMPORARY_FAILURE.
//   - 0xa4 is KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS, as in the table of reasons, not
//     KV_SYNC_RE_COMMIT_IN_PROGRESS, as in the list of codes.
//   - SERVICE_RESPONSE_CODE_INDICATED does not belong to a code. Use it in tables of your
//     own.
//   - According to the text, UNKNOWN "must not be retried"; the algorithm retries it for
//     idempotent requests. The strategy decides: see
//     strategies.BestEffortStrategy.RefuseUnknown. UNKNOWN does not belong to a code.
//   - A decision that fails, by error or panic, is "not retried" (package strategies).
//   - Locked on Unlock ends the chain of classifiers: later classifiers cannot retry it.
//     It matches [ErrCASMismatch]. Collection-outdated on GetCollectionID and all codes
//     on DCP commands are not listed here, and are left to the classifiers of the
//     application.
//   - Of a response with several errors, all must be listed; the first names the reason.
//     A listed error proves that its own request did not change data, but not that of an
//     unlisted error in the same response.
//   - 0x85, busy, is not in the list. It counts as a code that only the server's
//     error map knows, which marks it "retry-later".
//   - In the error map, auto-retry counts as a retry indication, like retry-now and
//     retry-later. Its intervals and durations are ignored, since the strategy decides
//     how long to wait.
//   - Without an indication, an unknown status ends the chain as well.
//
// # Concurrency
//
// All functions and types are safe for concurrent use.
//
// # Sources
//
// RFC 0049 at revision 13; RFC 0013 for the error map. The numbers come from the
// memcached binary protocol as Couchbase extends it.
package couchbase
