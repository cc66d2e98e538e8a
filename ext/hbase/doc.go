// Package hbase makes asynchronous functions of requests to HBase, with gohbase
// (github.com/tsuna/gohbase), and a classifier of their errors. [Get] and [Scan] read,
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
// A row that does not exist, and a range without rows, complete the attempt without a
// result. Classifier names only errors, so the element leaves without a result after a
// single call. To retry it, give the empty result a reason:
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
// gohbase repeats a request itself until its context ends, and has no setting for that:
//
//   - After NotServingRegionException and RegionMovedException it looks up the region and
//     sends the request to the server that has it now.
//   - After CallQueueTooBigException, RegionOpeningException, RegionTooBusyException,
//     RpcThrottlingException, ServerNotRunningYetException and RetryImmediatelyException
//     it waits 16 ms, 32 ms, and so on, and sends the request again.
//   - After a connection has ended, or its server has stopped, it waits until the region
//     is available again, and sends the request again. The server may have executed the
//     first request: an increment then counts twice.
//   - A request waits in gohbase while its region is not available.
//
// [Get] and [Scan] leave these repetitions to gohbase, since reads have no effect. A
// request that waits keeps its permit, so bound it by asyncop.WithAttemptTimeout. After a
// region server is killed, its regions are not available until ZooKeeper's session of the
// server has ended (zookeeper.session.timeout, 90 s by default) and another server has
// opened them.
//
// [Mutate] sends a write at most once in an attempt: the first error after it was sent
// ends the attempt, and the policy decides about a retry. Do not use the methods of a
// gohbase.Client for writes that must not happen twice.
//
// # Reasons
//
// "n" marks reasons that allow a retry of calls that must not happen twice. They are
// proofs for writes of [Mutate] only. An error of another request may follow repetitions
// inside gohbase, so the reasons keep their names but lose the "n", and a rejection has
// no reason.
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
// HBase 2.6.3 throws the exceptions with "n" before it changes anything. A coprocessor (of
// Phoenix, for example) may throw them later: do not rely on "n" for tables with
// coprocessors. HBase throws "log is closed" while it writes, so that write may have
// happened. All other exceptions are final and have no reason. A write in doubt may be
// repeated only if it is idempotent.
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
// one request. A get alone therefore takes 20 ms. gohbase.FlushInterval sets the interval
// and gohbase.RpcQueueSize the number. [Mutate] does not collect: it sends each write at
// once, since the result of a batch does not show whether a write was sent.
//
// # Limits
//
// CheckAndPut is not supported. gohbase does not send nonces, which would let HBase
// recognise a repeated increment. Scanners of a scan that is cut off are closed in the
// background, and end by themselves after hbase.client.scanner.timeout.period.
//
// If a server hangs and the buffers of its connection are full, gohbase blocks in the
// write, and sets no deadline. [Mutate] closes such a connection 5 s after the timeout of
// the attempt. Then all requests of the connection end, and writes among them are in
// doubt.
//
// All functions are safe for concurrent use.
//
// # Sources
//
// gohbase at revision cb1f77f08e4f, and the byte code of HBase 2.6.3.
package hbase
