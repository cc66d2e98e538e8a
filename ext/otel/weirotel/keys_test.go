package weirotel_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// The numbers of the table, and the outcomes of attempts.
func TestKeys(t *testing.T) {
	down := false
	k, db := tallytest.NewKeys(t.Context(), &down)
	defer db.Close()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := weirotel.ObserveKeys("rows", k, provider)
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{
		"keys.records": 5, "keys.clients": 2, "keys.unfinished": 3, "keys.overdue": 1, "keys.collected": 0, "keys.runs.stale": 0, "keys.count_failures": 0,
		"keys.requests new": 0, "keys.requests resumed": 0, "keys.requests replayed": 0, "keys.requests in_progress": 0,
		"keys.requests mismatch": 0, "keys.requests invalid": 1,
	}, collect(t, reader))
	require.NoError(t, registration.Unregister())
	assert.Empty(t, collect(t, reader))

	_, err = weirotel.ObserveKeys("rows", k, refusing{})
	assert.ErrorIs(t, err, tallytest.ErrDown)
	assert.Panics(t, func() { _, _ = weirotel.ObserveKeys("", k, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveKeys("rows", nil, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveKeys("rows", k, nil) })
}
