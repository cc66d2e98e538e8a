package weirprom_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

// While queues and tables cannot be counted, the endpoint has the other metrics, and the
// numbers of the counts before.
func TestFailedCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		k, db := tallytest.NewKeys(t.Context(), &down)
		defer db.Close()
		registry := prometheus.NewRegistry()
		registry.MustRegister(weirprom.NewQueues(tallytest.Queues{Inspector: memory.Open(), Down: &down}, "rows"), weirprom.NewKeys("rows", k),
			weirprom.NewWorker("rows", &delivery.Monitor{}))
		scrape := func() map[string]float64 {
			w := httptest.NewRecorder()
			promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			values := metricsOf(t, registry)
			require.EqualValues(t, 1, values["worker_state starting"])
			return values
		}
		values := scrape()
		require.NotContains(t, values, "queue_messages")
		require.NotContains(t, values, "keys_records")
		down = false
		before := scrape()
		require.Contains(t, before, "queue_messages")
		require.EqualValues(t, 5, before["keys_records"])
		down = true
		after := scrape()
		for _, name := range []string{"queue_count_failures_total", "keys_count_failures_total"} {
			require.Contains(t, before, name)
			require.EqualValues(t, 2, after[name]-before[name], "two scrapes")
			delete(before, name)
			delete(after, name)
		}
		require.Equal(t, before, after)
	})
}
