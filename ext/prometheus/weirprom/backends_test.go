package weirprom_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

// Metrics show the state of a backend at the time of the scrape.
func TestBackends(t *testing.T) {
	mock := clock.NewMock()
	b := backend.New("rows", backend.Limit(5), backend.RetryBudget(0.2), backend.WithClock(mock))
	collector := weirprom.NewBackends(b, backend.New("without a limit"))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	mock.Add(time.Minute)
	b.Hold("by hand")
	assert.Equal(t, map[string]float64{
		"backend_state up": 0, "backend_state down": 0, "backend_state probing": 0, "backend_state ramping": 0, "backend_state held": 1,
		"backend_limit": 5, "backend_in_use": 0, "backend_waiting": 0, "backend_tenants_paused": 0, "backend_tenants_down": 0, "backend_retries_left": 100,
		"backend_state_since_timestamp_seconds": 60, "backend_attempts_total": 0, "backend_attempts_lost_total": 0,
		"backend_attempts_throttled_total": 0, "backend_retries_refused_total": 0, "backend_trips_total": 0, "backend_tenant_trips_total": 0, "backend_would_have_tripped_total": 0,
	}, metricsOf(t, registry))
	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Equal(t, 2, testutil.CollectAndCount(collector, "weir_backend_in_use"))
	assert.Equal(t, 1, testutil.CollectAndCount(collector, "weir_backend_limit", "weir_backend_retries_left")-1)
	assert.Panics(t, func() { weirprom.NewBackends(nil) })
}
