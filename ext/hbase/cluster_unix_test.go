//go:build unix

package hbase_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/tsuna/gohbase/region"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/hbase"
	"github.com/weirflow/weir/internal/testing/hbasetest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// A start costs most, so all tests share a cluster. The last one kills a server.
func TestCluster(t *testing.T) {
	cluster := hbasetest.Start(t, 2)
	admin := gohbase.NewAdminClient(cluster.Quorum())
	createTable(t, admin)
	client := gohbase.NewClient(cluster.Quorum(), gohbase.FlushInterval(time.Millisecond))
	t.Cleanup(client.Close)

	t.Run("Rows", func(t *testing.T) { testRows(t, client) })
	t.Run("EmptyResult", func(t *testing.T) { testEmptyResult(t, client) })
	t.Run("Refusals", func(t *testing.T) { testRefusals(t, client) })
	t.Run("RegionMove", func(t *testing.T) { testRegionMove(t, client, admin) })
	t.Run("Kill", func(t *testing.T) { testKill(t, client, cluster) })
}

// createTable creates the table of all tests. The master refuses until it has started.
func createTable(t *testing.T, admin gohbase.AdminClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := admin.CreateTable(hrpc.NewCreateTable(ctx, []byte("t"), map[string]map[string]string{"f": nil}))
		if err == nil || strings.Contains(err.Error(), "TableExistsException") { // gohbase may repeat the request
			return
		}
		require.NoError(t, ctx.Err(), "%v", err)
		time.Sleep(100 * time.Millisecond)
	}
}

func testRows(t *testing.T, client gohbase.Client) {
	keys := []string{"row-1", "row-2", "row-3", "row-4", "row-5"}
	for _, key := range keys {
		results, failure := callOnce(puts(client, "t", "f"), key)
		require.NoError(t, failure.Err)
		assert.Equal(t, []string{key}, results)
	}
	names, failure := callOnce(gets(client, "t"), "row-3")
	require.NoError(t, failure.Err)
	assert.Equal(t, []string{"name of row-3"}, names)
	found, failure := callOnce(scans(client), "row-")
	require.NoError(t, failure.Err)
	assert.Equal(t, keys, found)
	for want := range int64(3) {
		counts, failure := callOnce(increments(client, 0), "row-1")
		require.NoError(t, failure.Err)
		assert.Equal(t, []int64{want + 1}, counts)
	}

	for name, fn := range map[string]asyncop.AsyncFunction[string, string]{"get": gets(client, "t"), "scan": scans(client)} {
		results, failure := callOnce(fn, "absent")
		require.NoError(t, failure.Err, name)
		assert.Empty(t, results, name)
	}
	exists := hbase.Get(client,
		func(ctx context.Context, key string) (*hrpc.Get, error) {
			get, err := hrpc.NewGetStr(ctx, "t", key)
			get.ExistsOnly()
			return get, err
		},
		func(key string, _ *hrpc.Result) (string, error) { return key, nil })
	for key, want := range map[string][]string{"row-1": {"row-1"}, "absent": nil} {
		results, failure := callOnce(exists, key)
		require.NoError(t, failure.Err)
		assert.Equal(t, want, results)
	}
}

// A row that does not exist yet is looked up again, as in FLIP-232.
func testEmptyResult(t *testing.T, client gohbase.Client) {
	get := gets(client, "t")
	var once sync.Once
	late := asyncop.Func(func(ctx context.Context, key string, result asyncop.ResultFuture[string]) error {
		if asyncop.AttemptFromContext(ctx) == 3 {
			once.Do(func() {
				_, failure := callOnce(puts(client, "t", "f"), key)
				assert.NoError(t, failure.Err)
			})
		}
		return get.AsyncInvoke(ctx, key, result)
	})
	op := asyncop.OrderedWaitWithRetry(late, patience, 10,
		strategies.FixedDelay[string](5, time.Millisecond).RetryIfResult(predicates.EmptyResult))
	var names []string
	for name, err := range op.Results(slices.Values([]string{"late"})) {
		require.NoError(t, err)
		names = append(names, name)
	}
	assert.Equal(t, []string{"name of late"}, names)
	assert.EqualValues(t, 2, op.Stats().RetriesOnResult)
}

func testRefusals(t *testing.T, client gohbase.Client) {
	_, failure := callOnce(puts(client, "t", "absent"), "k")
	assert.Equal(t, predicates.NewRejection("HBASE_NO_SUCH_COLUMN_FAMILY"), failure.Reason, "%v", failure.Err)
	assert.False(t, failure.InDoubt)

	_, failure = callOnce(puts(client, "absent", "f"), "k")
	require.ErrorIs(t, failure.Err, gohbase.TableNotFound)
	assert.Equal(t, predicates.NewRejection("HBASE_TABLE_NOT_FOUND"), failure.Reason)
	assert.False(t, failure.InDoubt)

	_, failure = callOnce(gets(client, "absent"), "k")
	require.ErrorIs(t, failure.Err, gohbase.TableNotFound)
}

// testRegionMove moves the region while gohbase expects it at its old server. The write
// is refused, not sent again by gohbase, and repeated by the operator.
func testRegionMove(t *testing.T, client gohbase.Client, admin gohbase.AdminClient) {
	_, failure := callOnce(increments(client, 0), "moved")
	require.NoError(t, failure.Err)
	moveRegion(t, client, admin)
	_, failure = callOnce(increments(client, 0), "moved")
	require.Error(t, failure.Err, "gohbase has repeated the write")
	refusals := []predicates.Reason{allowed("HBASE_NOT_SERVING_REGION"), allowed("HBASE_REGION_MOVED"), allowed("HBASE_REGION_OPENING")}
	assert.Contains(t, refusals, failure.Reason, "%v", failure.Err)
	assert.False(t, failure.InDoubt)
	assert.Equal(t, map[string]int64{"moved": 2}, incrementAll(client, patience, nil, "moved").counts)

	moveRegion(t, client, admin)
	assert.Equal(t, map[string]int64{"moved": 3}, incrementAll(client, patience, nil, "moved").counts)
}

// moveRegion moves the region to the other server.
func moveRegion(t *testing.T, client gohbase.Client, admin gohbase.AdminClient) {
	t.Helper()
	name, from := locate(t, client)
	parts := strings.Split(strings.TrimSuffix(name, "."), ".")
	move, err := hrpc.NewMoveRegion(t.Context(), []byte(parts[len(parts)-1]))
	require.NoError(t, err)
	require.NoError(t, admin.MoveRegion(move))
	require.Eventually(t, func() bool {
		_, at := locate(t, client)
		return at != from
	}, patience, 100*time.Millisecond, "the region stays at %s", from)
}

// locate returns the name of the region, and the address of its server. A region that
// moves has its old address until its new server has opened it.
func locate(t *testing.T, client gohbase.Client) (name, at string) {
	t.Helper()
	scan, err := hrpc.NewScanStr(t.Context(), "hbase:meta", hrpc.Families(map[string][]string{"info": nil}))
	require.NoError(t, err)
	scanner := client.Scan(scan)
	defer scanner.Close()
	for {
		row, err := scanner.Next()
		require.NoError(t, err, "the table has no region")
		info, at, err := region.ParseRegionInfo(row)
		if err == nil && string(info.Table()) == "t" { // rows of other kinds are errors
			return string(info.Name()), at
		}
	}
}

// testKill kills a server that has received increments and does not answer. They must not
// be repeated. Later increments wait for the region until another server has it.
func testKill(t *testing.T, client gohbase.Client, cluster *hbasetest.Cluster) {
	_, failure := callOnce(puts(client, "t", "f"), "before")
	require.NoError(t, failure.Err)
	var inFlight, later []string
	for i := range 10 {
		inFlight = append(inFlight, fmt.Sprintf("in-flight-%d", i))
		later = append(later, fmt.Sprintf("later-%d", i))
	}
	_, at := locate(t, client)
	cluster.Freeze(at)
	sent := make(chan predicates.Stage, len(inFlight))
	lost := make(chan outcome)
	go func() { lost <- incrementAll(client, 0, func(stage predicates.Stage) { sent <- stage }, inFlight...) }()
	for range inFlight {
		<-sent
	}
	cluster.Kill(at)
	outcome := <-lost
	assert.Empty(t, outcome.counts)
	for _, key := range inFlight {
		failure := outcome.failures[key]
		assert.Equal(t, netretry.ConnectionLost, failure.Reason, "%v", failure.Err)
		assert.True(t, failure.InDoubt)
		assert.Equal(t, 1, failure.Attempts)
	}

	outcome = incrementAll(client, 10*time.Second, nil, later...)
	t.Logf("%d retries of %d increments until another server had the region", outcome.retries, len(later))
	for _, key := range later {
		count, failure := outcome.counts[key], outcome.failures[key]
		assert.True(t, count == 1 || failure.InDoubt, "%s: count %d, %v", key, count, failure.Err)
	}
	assert.NotEmpty(t, outcome.counts)

	names, failure := callOnce(gets(client, "t"), "before")
	require.NoError(t, failure.Err)
	assert.Equal(t, []string{"name of before"}, names)
	for _, key := range append(inFlight, later...) {
		cells, failure := callOnce(gets(client, "t"), key)
		require.NoError(t, failure.Err)
		for _, cell := range cells {
			assert.Equal(t, uint64(1), binary.BigEndian.Uint64([]byte(cell)), key)
		}
	}
}

// outcome is the outcome of an operator that increments counters.
type outcome struct {
	counts   map[string]int64
	failures map[string]asyncop.Failure[string]
	retries  int64
}

// incrementAll increments a counter for each key. If report is not nil, the stages of the
// attempts go there.
func incrementAll(client gohbase.Client, timeout time.Duration, report func(predicates.Stage), keys ...string) outcome {
	type counted struct {
		key   string
		count int64
	}
	increment := hbase.Mutate(client, timeout,
		func(ctx context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewIncStrSingle(ctx, "t", key, "f", "count", 1)
		},
		func(key string, r *hrpc.Result) (counted, error) {
			return counted{key, int64(binary.BigEndian.Uint64(r.Cells[0].Value))}, nil
		})
	reported := asyncop.Func(func(ctx context.Context, key string, result asyncop.ResultFuture[counted]) error {
		if report != nil {
			ctx = predicates.WithStageReporter(ctx, report)
		}
		return increment.AsyncInvoke(ctx, key, result)
	})
	all := outcome{counts: map[string]int64{}, failures: map[string]asyncop.Failure[string]{}}
	op := asyncop.UnorderedWaitWithRetry(reported, patience, len(keys), strategies.ReasonAware(hbase.Classifier[counted](), nil),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			all.failures[f.Element] = f
			return nil
		}))
	for c := range op.Results(slices.Values(keys)) {
		all.counts[c.key] = c.count
	}
	all.retries = op.Stats().Retries()
	return all
}
