// Package hbase makes asynchronous functions of HBase requests, with gohbase
// (github.com/tsuna/gohbase), and classifies their errors. [Get] and [Scan] read,
// [Mutate] writes: puts, deletes, increments and appends.
//
//	client := gohbase.NewClient("zookeeper", gohbase.FlushInterval(time.Millisecond))
//	defer client.Close()
//	name := hbase.Get(client,
//		func(ctx context.Context, key string) (*hrpc.Get, error) {
//			return hrpc.NewGetStr(ctx, "airports", key)
//		},
//		func(key string, row *hrpc.Result) (string, error) {
//			return string(row.Cells[0].Value), nil
//		})
//	policy := strategies.ReasonAware(hbase.Classifier[string](), nil).Idempotent()
//
// # Empty results
//
// A missing row, and a range without rows, complete the attempt without a result, which
// Classifier does not retry. To retry it, give the empty result a reason:
//
//	absent := predicates.NewReason("ABSENT", true, false)
//	classify := predicates.Classifiers(
//		predicates.ByResult(predicates.EmptyResult[string], absent),
//		hbase.Classifier[string]())
//	policy := strategies.ReasonAware(classify, nil).Idempotent().
//		WithMaxRetriesFor(absent, 3)
//
// After three retries the element leaves without a result. Without a limit it is retried
// until its timeout, and fails.
//
// # Retries of gohbase
//
// gohbase repeats a request until its context ends, and has no setting for that:
//
//   - After NotServingRegionException and RegionMovedException it looks up the region
//     again.
//   - After CallQueueTooBigException, RegionOpeningException, RegionTooBusyException,
//     RpcThrottlingException, ServerNotRunningYetException and RetryImmediatelyException
//     it waits 16 ms, 32 ms, and so on.
//   - After a connection has ended, or its server has stopped, it waits until the region
//     is available. The server may have executed the first request: an increment then
//     counts twice.
//   - A request waits while its region is not available.
//
// [Get] and [Scan] keep these repetitions. A waiting request keeps its permit, so bound
// it by asyncop.WithAttemptTimeout. The regions of a killed server are not available
// until its ZooKeeper session has ended (zookeeper.session.timeout, 90 s by default) and
// other servers have opened them.
//
// [Mutate] sends a write at most once in an attempt: an error after that ends the
// attempt, and the policy decides about a retry. Do not use the methods of a
// gohbase.Client for writes that must not happen twice.
//
// # Reasons
//
// "n" marks reasons that allow a retry of calls that must not happen twice. They hold for
// writes of [Mutate] only. Errors of other requests may follow repetitions inside
// gohbase, so their reasons lose the "n", and a rejection has no reason.
//
//	error of gohbase                        reason                         n
//	NotServingRegionException               HBASE_NOT_SERVING_REGION       n
//	RegionMovedException                    HBASE_REGION_MOVED             n
//	RegionOpeningException                  HBASE_REGION_OPENING           n
//	RegionTooBusyException                  HBASE_REGION_TOO_BUSY          n
//	CallQueueTooBigException                HBASE_CALL_QUEUE_TOO_BIG       n
//	CallDroppedException                    HBASE_CALL_DROPPED             n
//	RpcThrottlingException                  HBASE_THROTTLED                n
//	ServerNotRunningYetException            HBASE_SERVER_NOT_RUNNING       n
//	RegionServerStoppedException, -Aborted  HBASE_SERVER_STOPPED           n
//	gohbase.ErrCannotFindRegion             HBASE_REGION_NOT_FOUND         n
//	RetryImmediatelyException               HBASE_RETRY_IMMEDIATELY
//	IOException: … log is closed            HBASE_LOG_CLOSED
//	UnknownScannerException and similar     HBASE_SCANNER_LOST
//	connection ended (region.ServerError)   CONNECTION_LOST_IN_FLIGHT
//	write not sent: deadline, connection    REQUEST_NOT_SENT               n
//	context deadline                        TIMED_OUT_IN_FLIGHT
//	gohbase.TableNotFound                   HBASE_TABLE_NOT_FOUND          rejection
//	NoSuchColumnFamilyException             HBASE_NO_SUCH_COLUMN_FAMILY    rejection
//
// HBase 2.6.3 throws the exceptions with "n" before it changes anything. A coprocessor
// (of Phoenix, for example) may throw them later: do not rely on "n" for tables with
// coprocessors. A write with "log is closed" may have happened. Other exceptions are
// final and have no reason. Only idempotent writes may be repeated in doubt.
//
// # Idempotent writes
//
// You state which calls may happen twice: see strategies.Policy.Idempotent and
// predicates.Idempotent.
//
//	put, delete of a column or row   with hrpc.Timestamp; otherwise the repetition is a
//	                                 newer version, and hides later writes of others
//	delete of one version            only with hrpc.Timestamp
//	increment, append                never
//
// # Batches
//
// gohbase collects gets for 20 ms, or until there are 100 for a server, and sends them as
// one request. So a single get takes 20 ms. gohbase.FlushInterval sets the interval and
// gohbase.RpcQueueSize the number. [Mutate] sends each write at once, since the result of
// a batch does not show whether a write was sent.
//
// # Limits
//
// CheckAndPut is not supported. gohbase does not send nonces, so HBase cannot recognise a
// repeated increment. Scanners of a cancelled scan are closed in the background, or end
// after hbase.client.scanner.timeout.period.
//
// If a server hangs and its connection's buffers are full, gohbase blocks without a
// deadline. [Mutate] closes such a connection 5 s after the timeout of the attempt. Then
// all requests of the connection end, and writes among them are in doubt.
//
// All functions are safe for concurrent use.
//
// # Sources
//
// gohbase at revision cb1f77f08e4f, and the byte code of HBase 2.6.3.
package hbase
