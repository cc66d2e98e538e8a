package hbase_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/tsuna/gohbase/region"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/hbase"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

const java = "org.apache.hadoop.hbase."

var none predicates.Reason

func allowed(name string) predicates.Reason   { return predicates.NewReason(name, true, false) }
func inDoubt(name string) predicates.Reason   { return predicates.NewReason(name, false, false) }
func rejection(name string) predicates.Reason { return predicates.NewRejection(name) }

// exceptions has the exceptions that HBase throws before it changes anything, and others.
var exceptions = []struct {
	class, stack string
	want         predicates.Reason
}{
	{java + "NotServingRegionException", "", allowed("HBASE_NOT_SERVING_REGION")},
	{java + "exceptions.RegionMovedException", "", allowed("HBASE_REGION_MOVED")},
	{java + "exceptions.RegionOpeningException", "", allowed("HBASE_REGION_OPENING")},
	{java + "RegionTooBusyException", "", allowed("HBASE_REGION_TOO_BUSY")},
	{java + "CallQueueTooBigException", "", allowed("HBASE_CALL_QUEUE_TOO_BIG")},
	{java + "CallDroppedException", "", allowed("HBASE_CALL_DROPPED")},
	{java + "quotas.RpcThrottlingException", "", allowed("HBASE_THROTTLED")},
	{java + "ipc.ServerNotRunningYetException", "", allowed("HBASE_SERVER_NOT_RUNNING")},
	{java + "regionserver.RegionServerStoppedException", "", allowed("HBASE_SERVER_STOPPED")},
	{java + "regionserver.RegionServerAbortedException", "", allowed("HBASE_SERVER_STOPPED")},
	{java + "RetryImmediatelyException", "", inDoubt("HBASE_RETRY_IMMEDIATELY")},
	{"java.io.IOException", "Cannot append; log is closed, regionName = x", inDoubt("HBASE_LOG_CLOSED")},
	{java + "regionserver.NoSuchColumnFamilyException", "", rejection("HBASE_NO_SUCH_COLUMN_FAMILY")},
	{"java.io.IOException", "caused by " + java + "CallQueueTooBigException:\n", none},
	{java + "DroppedSnapshotException", "", none},
	{"", "", netretry.ConnectionLost}, // the connection ends
}

// A write is sent once, whatever the server answers, and the failure is in doubt unless
// the answer proves that HBase did not change anything.
func TestMutate_SentOnce(t *testing.T) {
	for _, tt := range exceptions {
		server := startServer(t, tt.class, tt.stack)
		client := &regionOnly{address: server.listener.Addr().String()}
		_, failure := callOnce(increments(client, patience), "k")
		require.Error(t, failure.Err, tt.class)
		assert.Equal(t, tt.want, failure.Reason, "%v", failure.Err)
		isProof := tt.want.AllowsNonIdempotentRetry() || tt.want.IsRejection()
		assert.Equal(t, !isProof, failure.InDoubt, "%v", failure.Err)
		assert.Equal(t, 1, server.received(), tt.class)
	}
}

// The operator repeats a write that was refused.
func TestMutate_RefusalIsRetried(t *testing.T) {
	server := startServer(t, java+"CallQueueTooBigException", "")
	client := &regionOnly{address: server.listener.Addr().String()}
	policy := strategies.ReasonAware(hbase.Classifier[int64](), strategies.BestEffort[int64]().WithMaxRetries(3))
	op := asyncop.OrderedWaitWithRetry(increments(client, patience), patience, 1, policy)
	for _, err := range op.Results(func(yield func(string) bool) { yield("k") }) {
		require.ErrorContains(t, err, "CallQueueTooBigException")
	}
	assert.Equal(t, 4, server.received())
}

// A write that was not sent may be repeated, whatever the error.
func TestMutate_NotSent(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want predicates.Reason
	}{
		{context.DeadlineExceeded, netretry.NotSent},
		{gohbase.ErrCannotFindRegion, allowed("HBASE_REGION_NOT_FOUND")},
		{gohbase.TableNotFound, rejection("HBASE_TABLE_NOT_FOUND")},
		{gohbase.ErrClientClosed, none},
		{context.Canceled, none},
		{errors.New("other"), none},
	} {
		_, failure := callOnce(increments(&regionOnly{refused: tt.err}, patience), "k")
		require.ErrorIs(t, failure.Err, tt.err)
		assert.Equal(t, tt.want, failure.Reason, "%v", tt.err)
		assert.False(t, failure.InDoubt, "%v", tt.err)
	}
}

// The server reads only the beginning of the request. The attempt ends nevertheless,
// after gohbase has stopped writing.
func TestMutate_TimeoutWhileWriting(t *testing.T) {
	hbase.SetWriteGrace(t, 10*time.Millisecond)
	server := startServer(t, frozen, "")
	late := &deadline{Context: t.Context(), reached: server.received1}
	put := hbase.Mutate(&regionOnly{address: server.listener.Addr().String()}, patience,
		func(_ context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewPutStr(late, "t", key, map[string]map[string][]byte{"f": {"v": make([]byte, 64<<20)}})
		},
		func(key string, _ *hrpc.Result) (string, error) { return key, nil })
	_, failure := callOnce(put, "k")
	require.ErrorIs(t, failure.Err, context.DeadlineExceeded)
	assert.Equal(t, netretry.TimedOut, failure.Reason)
	assert.True(t, failure.InDoubt)
}

// The request has another context than the attempt.
func TestMutate_TimeoutWithAnotherContext(t *testing.T) {
	server := startServer(t, silent, "")
	increment := hbase.Mutate(&regionOnly{address: server.listener.Addr().String()}, time.Second,
		func(_ context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewIncStrSingle(context.Background(), "t", key, "f", "count", 1)
		},
		func(string, *hrpc.Result) (int, error) { return 0, nil })
	_, failure := callOnce(increment, "k")
	require.ErrorIs(t, failure.Err, context.DeadlineExceeded)
}

// The mutation is the element, so each attempt gets the same one.
func TestMutate_RequestOfTheElement(t *testing.T) {
	server := startServer(t, java+"CallQueueTooBigException", "")
	client := &regionOnly{address: server.listener.Addr().String()}
	increment := hbase.Mutate(client, patience,
		func(_ context.Context, m *hrpc.Mutate) (*hrpc.Mutate, error) { return m, nil },
		func(*hrpc.Mutate, *hrpc.Result) (int, error) { return 1, nil })
	m, err := hrpc.NewIncStrSingle(t.Context(), "t", "k", "f", "count", 1)
	require.NoError(t, err)
	policy := strategies.ReasonAware(hbase.Classifier[int](), strategies.BestEffort[int]().WithMaxRetries(3))
	op := asyncop.OrderedWaitWithRetry(increment, patience, 1, policy)
	var failures []error
	for _, err := range op.Results(slices.Values([]*hrpc.Mutate{m})) {
		failures = append(failures, err)
	}
	require.Len(t, failures, 1)
	require.ErrorContains(t, failures[0], "CallQueueTooBigException")
	assert.Equal(t, 4, server.received())
}

// A server that does not answer may have executed the write.
func TestMutate_TimeoutInFlight(t *testing.T) {
	server := startServer(t, silent, "")
	late := &deadline{Context: t.Context(), reached: server.received1}
	increment := hbase.Mutate(&regionOnly{address: server.listener.Addr().String()}, patience,
		func(_ context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewIncStrSingle(late, "t", key, "f", "count", 1)
		},
		func(string, *hrpc.Result) (int, error) { return 0, nil })
	_, failure := callOnce(increment, "k")
	require.ErrorIs(t, failure.Err, context.DeadlineExceeded)
	assert.Equal(t, netretry.TimedOut, failure.Reason)
	assert.True(t, failure.InDoubt)
}

// deadline is a context whose deadline is an event.
type deadline struct {
	context.Context

	reached chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.reached }
func (d *deadline) Err() error {
	select {
	case <-d.reached:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Errors of gohbase's own methods, and of reads, may follow a repetition inside gohbase,
// so they are not evidence about the first request.
func TestClassifier_ErrorsOfOtherRequests(t *testing.T) {
	for _, tt := range exceptions {
		if tt.class == "" {
			continue
		}
		err := fmt.Errorf("HBase Java exception %s:\n%s", tt.class, tt.stack) // as in gohbase
		want := none
		if !tt.want.IsZero() && !tt.want.IsRejection() {
			want = inDoubt(tt.want.Name())
		}
		assert.Equal(t, want, classify(err, false), "%v", err)
	}
	for _, tt := range []struct {
		err  error
		want predicates.Reason
	}{
		{fmt.Errorf("HBase Java exception %sUnknownScannerException:\n", java), inDoubt("HBASE_SCANNER_LOST")},
		{fmt.Errorf("HBase Java exception %sexceptions.ScannerResetException:\n", java), inDoubt("HBASE_SCANNER_LOST")},
		{fmt.Errorf("HBase Java exception %sexceptions.OutOfOrderScannerNextException:\n", java), inDoubt("HBASE_SCANNER_LOST")},
		{fmt.Errorf("HBase Java exception %sregionserver.LeaseException:\n", java), inDoubt("HBASE_SCANNER_LOST")},
		{fmt.Errorf("get: %w", region.ErrClientClosed), netretry.ConnectionLost},
		{region.NotServingRegionError{}, inDoubt("HBASE_NOT_SERVING_REGION")},
		{gohbase.ErrCannotFindRegion, inDoubt("HBASE_REGION_NOT_FOUND")},
		{gohbase.TableNotFound, none},
		{context.DeadlineExceeded, netretry.TimedOut},
		{context.Canceled, none},
		{nil, none},
		{predicates.WithReason(errors.New("mine"), allowed("MINE")), allowed("MINE")},
	} {
		assert.Equal(t, tt.want, classify(tt.err, false), "%v", tt.err)
	}
	mine := predicates.WithReason(errors.New("mine"), allowed("MINE"))
	assert.Equal(t, inDoubt("MINE"), classify(mine, true), "another request of the call is in doubt")
}

func classify(err error, isInDoubt bool) predicates.Reason {
	reason, _ := hbase.Classifier[int]()(&predicates.Attempt[int]{Err: err, InDoubt: isInDoubt})
	return reason
}

// A backend goes down if its service is overloaded or unavailable. The core knows the
// reasons by name and properties only.
func TestReasons_OfABackend(t *testing.T) {
	isLoss := map[string]bool{
		"HBASE_REGION_TOO_BUSY": true, "HBASE_CALL_QUEUE_TOO_BIG": true, "HBASE_CALL_DROPPED": true,
		"HBASE_SERVER_NOT_RUNNING": true, "HBASE_SERVER_STOPPED": true, "CONNECTION_LOST_IN_FLIGHT": true,
	}
	for _, tt := range exceptions {
		if tt.want.IsZero() {
			continue
		}
		b := backend.New("hbase")
		fail := asyncop.Blocking(func(context.Context, string) (int, error) {
			return 0, predicates.WithReason(errors.New("failed"), tt.want)
		})
		op := asyncop.OrderedWait(fail, patience, 1, asyncop.WithBackend(b),
			asyncop.WithFailureSink(func(context.Context, asyncop.Failure[string]) error { return nil }))
		for range op.Results(func(yield func(string) bool) {
			for range 5 {
				yield("k")
			}
		}) {
			continue
		}
		assert.Equal(t, isLoss[tt.want.Name()], b.Stats().State == backend.Down, "%v", tt.want)
	}
}
