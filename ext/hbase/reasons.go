package hbase

import (
	"strings"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

var (
	notServingRegion = predicates.NewReason("HBASE_NOT_SERVING_REGION", true, false)
	regionNotFound   = predicates.NewReason("HBASE_REGION_NOT_FOUND", true, false)
	serverStopped    = predicates.NewReason("HBASE_SERVER_STOPPED", true, false)
	scannerLost      = predicates.NewReason("HBASE_SCANNER_LOST", false, false)
	tableNotFound    = predicates.NewRejection("HBASE_TABLE_NOT_FOUND")
)

// exceptions has the reasons of Java exceptions, by class. HBase 2.6.3 throws an
// exception before it changes anything if the reason is a rejection, or allows a retry of
// calls that must not happen twice.
var exceptions = map[string]predicates.Reason{
	"org.apache.hadoop.hbase.NotServingRegionException":                 notServingRegion,
	"org.apache.hadoop.hbase.exceptions.RegionMovedException":           predicates.NewReason("HBASE_REGION_MOVED", true, false),
	"org.apache.hadoop.hbase.exceptions.RegionOpeningException":         predicates.NewReason("HBASE_REGION_OPENING", true, false),
	"org.apache.hadoop.hbase.RegionTooBusyException":                    predicates.NewReason("HBASE_REGION_TOO_BUSY", true, false),
	"org.apache.hadoop.hbase.CallQueueTooBigException":                  predicates.NewReason("HBASE_CALL_QUEUE_TOO_BIG", true, false),
	"org.apache.hadoop.hbase.CallDroppedException":                      predicates.NewReason("HBASE_CALL_DROPPED", true, false),
	"org.apache.hadoop.hbase.quotas.RpcThrottlingException":             predicates.NewReason("HBASE_THROTTLED", true, false),
	"org.apache.hadoop.hbase.ipc.ServerNotRunningYetException":          predicates.NewReason("HBASE_SERVER_NOT_RUNNING", true, false),
	"org.apache.hadoop.hbase.regionserver.RegionServerStoppedException": serverStopped,
	"org.apache.hadoop.hbase.regionserver.RegionServerAbortedException": serverStopped,
	"org.apache.hadoop.hbase.RetryImmediatelyException":                 predicates.NewReason("HBASE_RETRY_IMMEDIATELY", false, false),
	logClosed: predicates.NewReason("HBASE_LOG_CLOSED", false, false),
	"org.apache.hadoop.hbase.UnknownScannerException":                   scannerLost,
	"org.apache.hadoop.hbase.exceptions.ScannerResetException":          scannerLost,
	"org.apache.hadoop.hbase.exceptions.OutOfOrderScannerNextException": scannerLost,
	"org.apache.hadoop.hbase.regionserver.LeaseException":               scannerLost,
	"org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException":  predicates.NewRejection("HBASE_NO_SUCH_COLUMN_FAMILY"),
}

// logClosed is the key of an exception without its own class.
const logClosed = "Cannot append; log is closed"

// exceptionOf returns the class of the Java exception in the text of err, where alone
// gohbase keeps it, or "".
func exceptionOf(err error) string {
	_, text, ok := strings.Cut(err.Error(), "HBase Java exception ")
	if !ok {
		return ""
	}
	class, stack, _ := strings.Cut(text, ":\n")
	if class == "java.io.IOException" && strings.Contains(stack, logClosed) {
		return logClosed
	}
	return class
}

// weakened returns the reason of this name that does not allow a retry of calls that must
// not happen twice.
func weakened(r predicates.Reason) predicates.Reason {
	return decision.WeakestOf(r, predicates.Reason{})
}
