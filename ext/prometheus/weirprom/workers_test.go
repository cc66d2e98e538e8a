package weirprom_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/partitions"
)

// A worker's metrics are the numbers of its monitor.
func TestWorker(t *testing.T) {
	engine := memory.Open()
	q, out := delivery.NewQueue[int](engine, "numbers"), delivery.NewQueue[int](engine, "out")
	monitor := &delivery.Monitor{}
	collector := weirprom.NewWorker("rows", monitor)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	assert.EqualValues(t, 1, metricsOf(t, registry)["worker_state starting"])
	for i := range 10 {
		require.NoError(t, q.Put(t.Context(), i))
	}
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) {
		if i == 3 {
			return 0, errors.New("bad")
		}
		return i, nil
	}), time.Minute, 10, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_, err := delivery.Run(ctx, q, op, out, delivery.WithLogger(slog.New(slog.DiscardHandler)), delivery.WithMonitor(monitor))
		assert.NoError(t, err)
	}()
	require.Eventually(t, func() bool {
		s := monitor.Status()
		return s.Done+s.HandedOver == 10
	}, time.Minute, time.Millisecond)
	values := metricsOf(t, registry)
	for name, want := range map[string]float64{
		"worker_messages_received_total": 10, "worker_messages_redelivered_total": 0, "worker_messages_in_flight": 0,
		"worker_messages_settled_total done": 9, "worker_messages_settled_total handed_over": 1, "worker_messages_settled_total rejected": 0,
		"worker_floods_total": 0, "worker_leases_lost_total": 0, "worker_settlements_refused_total": 0,
	} {
		assert.Contains(t, values, name)
		assert.InDelta(t, want, values[name], 0, name)
	}
	assert.InDelta(t, 0, values["worker_clock_offset_seconds"], 1)
	assert.Contains(t, values, "worker_clock_offset_seconds")
	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	stop()
	<-ended
	assert.EqualValues(t, 1, metricsOf(t, registry)["worker_state ended"])
	assert.Panics(t, func() { weirprom.NewWorker("", monitor) })
	assert.Panics(t, func() { weirprom.NewWorker("rows", nil) })
}

// The package documentation, of which the reference is made, names all metrics and no
// others. Those of checkpoints have a test of their own.
func TestNamesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(weir_\w+)`).FindAllStringSubmatch(string(doc), -1) {
		if !strings.HasPrefix(m[1], "weir_checkpoint") {
			documented = append(documented, m[1])
		}
	}
	answers := server.NewResults(server.Config{})
	defer answers.Close(t.Context())
	descs := make(chan *prometheus.Desc, 1000)
	for _, c := range []prometheus.Collector{
		weirprom.New("rows"), weirprom.NewWorker("rows", &delivery.Monitor{}), weirprom.NewQueues(memory.Open(), "rows"),
		weirprom.NewBackends(), weirprom.NewResults("rows", answers), weirprom.NewPartitions("rows", &partitions.Monitor{}),
		weirprom.NewKeys("rows", keys.New(&sql.DB{}, keys.SQLite, keys.Config{})),
	} {
		c.Describe(descs)
	}
	close(descs)
	var described []string
	for d := range descs {
		described = append(described, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1])
	}
	assert.ElementsMatch(t, described, documented)
}
