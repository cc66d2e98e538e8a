package weirotel_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// Metrics show the present state of a backend.
func TestBackends(t *testing.T) {
	mock := clock.NewMock()
	b := backend.New("rows", backend.RetryBudget(0.2), backend.WithClock(mock))
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := weirotel.ObserveBackends(provider, b)
	require.NoError(t, err)
	mock.Add(time.Minute)
	b.Hold("by hand")
	assert.Equal(t, map[string]float64{
		"backend.state up": 0, "backend.state down": 0, "backend.state probing": 0, "backend.state ramping": 0, "backend.state held": 1,
		"backend.in_use": 0, "backend.waiting": 0, "backend.tenants_paused": 0, "backend.tenants_down": 0, "backend.retries_left": 100, "backend.state_since": 60,
		"backend.attempts": 0, "backend.attempts_lost": 0, "backend.attempts_throttled": 0, "backend.retries_refused": 0, "backend.trips": 0, "backend.tenant_trips": 0, "backend.would_have_tripped": 0,
	}, collect(t, reader))
	require.NoError(t, registration.Unregister())
	assert.Empty(t, collect(t, reader))
	_, err = weirotel.ObserveBackends(refusing{}, b)
	assert.ErrorIs(t, err, tallytest.ErrDown)
	assert.Panics(t, func() { _, _ = weirotel.ObserveBackends(provider, nil) })
}
