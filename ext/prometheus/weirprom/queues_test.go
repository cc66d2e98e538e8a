package weirprom_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/message"
)

// counts are the metrics without when they were counted.
func counts(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	all := metricsOf(t, registry)
	require.InDelta(t, float64(time.Now().Unix()), all["queue_counted_timestamp_seconds"], 60)
	delete(all, "queue_counted_timestamp_seconds")
	return all
}

// Depth, age, causes and reasons of queues, as they are at the scrape.
func TestQueues(t *testing.T) {
	mock := clock.NewMock()
	s := memory.Open(memory.WithClock(mock))
	collector := weirprom.NewQueues(s, "rows", "empty")
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	assert.Equal(t, map[string]float64{"queue_messages": 0, "queue_oldest_age_seconds": 0, "queue_count_failures_total": 0}, counts(t, registry))
	put := func(m store.Message) { require.NoError(t, s.Put(t.Context(), "rows", m)) }
	put(store.Message{Meta: message.Meta{ID: "a", Reasons: []string{"LOST", "BUSY"}}, Cause: store.Exhausted})
	mock.Add(time.Minute)
	put(store.Message{Meta: message.Meta{ID: "b", Reasons: []string{"LOST"}}, Cause: store.Permanent})
	put(store.Message{Meta: message.Meta{ID: "c"}, Cause: store.Permanent})
	put(store.Message{Meta: message.Meta{ID: "d"}})
	assert.Equal(t, map[string]float64{
		"queue_messages": 1, "queue_messages exhausted": 1, "queue_messages permanent": 2, "queue_oldest_age_seconds": 60,
		"queue_reason_messages LOST": 2, "queue_reason_messages BUSY": 1,
		"queue_count_failures_total": 0,
	}, counts(t, registry))

	for i := range 200 {
		put(store.Message{Meta: message.Meta{ID: fmt.Sprint(i), Reasons: []string{fmt.Sprintf("R%03d", i)}}})
	}
	values := counts(t, registry)
	assert.Len(t, values, 5+101)
	assert.EqualValues(t, 102, values["queue_reason_messages other"], "BUSY, LOST and R000 to R097 come first")

	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	require.NoError(t, s.Close())

	assert.Panics(t, func() { weirprom.NewQueues(nil, "rows") })
	assert.PanicsWithValue(t, "weirprom: NewQueues: no queue", func() { weirprom.NewQueues(s) })
	for _, names := range [][]string{{""}, {"a", "b", "a"}} {
		assert.Panics(t, func() { weirprom.NewQueues(s, names...) })
	}
}
