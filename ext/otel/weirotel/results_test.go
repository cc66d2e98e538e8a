package weirotel_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// The statistics of stored answers are reported with the units of the package
// documentation.
func TestResults(t *testing.T) {
	r := tallytest.NewResults(t.Context())
	defer func() { require.NoError(t, r.Close(context.WithoutCancel(t.Context()))) }()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := weirotel.ObserveResults("rows", r, provider)
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{
		"answers.clients": 1, "answers.records": 1, "answers.in_progress": 0, "answers.bytes": float64(r.Stats().Bytes),
		"answers.requests new": 2, "answers.requests attached": 0, "answers.requests replayed": 2, "answers.requests stale": 1,
		"answers.requests invalid": 1, "answers.requests mismatch": 0, "answers.requests full": 0, "answers.requests too_many_waiting": 0,
	}, collect(t, reader))
	units := map[string]string{}
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	for _, m := range got.ScopeMetrics[0].Metrics {
		units[m.Name] = m.Unit
	}
	assert.Equal(t, map[string]string{
		"weir.answers.clients": "{client}", "weir.answers.records": "{request}", "weir.answers.in_progress": "{request}",
		"weir.answers.bytes": "By", "weir.answers.requests": "{request}",
	}, units)
	require.NoError(t, registration.Unregister())
	assert.Empty(t, collect(t, reader))

	_, err = weirotel.ObserveResults("rows", r, refusing{})
	assert.ErrorIs(t, err, tallytest.ErrDown)
	assert.Panics(t, func() { _, _ = weirotel.ObserveResults("", r, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveResults("rows", nil, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveResults("rows", r, nil) })
}
