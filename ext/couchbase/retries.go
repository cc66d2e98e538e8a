package couchbase

import (
	"slices"
	"time"

	"github.com/couchbase/gocb/v2"
)

// NoRetries returns a strategy for gocb.ClusterOptions.RetryStrategy, or for the options
// of an operation, that leaves retries to the operator. Some failures gocb retries
// without asking its strategy, until the operation times out:
//
//   - Reasons that are always retried: the wrong node or an outdated map
//     (KV_NOT_MY_VBUCKET), an unknown collection (KV_COLLECTION_OUTDATED), and a request
//     that was not completely written (MEMD_WRITE_FAILURE).
//   - A request waits while there is no connection to its node. The timeout is then
//     NODE_NOT_AVAILABLE, which allows a retry of reads only: gocb may have sent the
//     request just after the timeout.
//
// NoRetries makes two exceptions:
//
//   - gocb retries a status that only the server's error map knows once, after 1 ms, if
//     the map allows it. gocb does not expose the map, so this retry is the only evidence
//     for [Classifier] that the operator may retry.
//   - Bucket.WaitUntilReady and Cluster.WaitUntilReady, which are not requests, continue
//     to wait while connections cannot be made.
func NoRetries() gocb.RetryStrategy { return noRetries{} }

type noRetries struct{}

func (noRetries) RetryAfter(request gocb.RetryRequest, reason gocb.RetryReason) gocb.RetryAction {
	if slices.Contains(notReady, reason.Description()) {
		return &gocb.WithDurationRetryAction{WithDuration: pollInterval}
	}
	if reason == gocb.KVErrMapRetryReason && !slices.Contains(request.RetryReasons(), reason) {
		return &gocb.WithDurationRetryAction{WithDuration: time.Millisecond}
	}
	return &gocb.NoRetryRetryAction{}
}

// notReady are the reasons for which WaitUntilReady polls again, which gocb does not
// export.
var notReady = []string{"NO_PIPELINE_SNAPSHOT", "BUCKET_NOT_FOUND", "CONNECTION_ERROR"}

// pollInterval is the interval of WaitUntilReady for these reasons.
const pollInterval = 50 * time.Millisecond
