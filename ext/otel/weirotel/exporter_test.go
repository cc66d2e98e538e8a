package weirotel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// Real exporters write spans through a batch processor, and metrics through a periodic
// reader.
func TestExporters(t *testing.T) {
	var spans, points bytes.Buffer
	spanExporter, err := stdouttrace.New(stdouttrace.WithWriter(&spans))
	require.NoError(t, err)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spanExporter))
	metricExporter, err := stdoutmetric.New(stdoutmetric.WithWriter(&points))
	require.NoError(t, err)
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricExporter)))
	metrics, err := weirotel.NewMetrics("rows", meters)
	require.NoError(t, err)

	op := asyncop.OrderedWait(asyncop.Func(double), 0, 4,
		asyncop.WithObserver(weirotel.NewTraces("rows", tracers)), asyncop.WithObserver(metrics))
	for _, err := range op.Messages(messages(1, 2, 3)) {
		require.NoError(t, err)
	}
	require.NoError(t, tracers.Shutdown(context.Background()))
	require.NoError(t, meters.Shutdown(context.Background()))

	names := map[string]int{}
	for lines := json.NewDecoder(&spans); lines.More(); {
		var span struct {
			Name        string
			SpanContext struct{ TraceID string }
			Links       []struct {
				SpanContext struct{ TraceID, SpanID string }
			}
		}
		require.NoError(t, lines.Decode(&span))
		names[span.Name]++
		if span.Name == "process orders" {
			require.Len(t, span.Links, 1)
			assert.Equal(t, senderTrace, span.Links[0].SpanContext.TraceID)
			assert.Equal(t, senderSpan, span.Links[0].SpanContext.SpanID)
			assert.NotEqual(t, senderTrace, span.SpanContext.TraceID)
		}
	}
	assert.Equal(t, map[string]int{"process orders": 3, "rows attempt": 3}, names)

	var exported struct {
		ScopeMetrics []struct {
			Metrics []struct {
				Name, Unit string
				Data       struct{ DataPoints []struct{ Value, Count any } }
			}
		}
	}
	require.NoError(t, json.Unmarshal(points.Bytes(), &exported), points.String())
	require.Len(t, exported.ScopeMetrics, 1)
	found := 0
	for _, m := range exported.ScopeMetrics[0].Metrics {
		switch m.Name {
		case "weir.elements.accepted":
			assert.EqualValues(t, 3, m.Data.DataPoints[0].Value)
			found++
		case "weir.element.duration":
			assert.Equal(t, "s", m.Unit)
			assert.EqualValues(t, 3, m.Data.DataPoints[0].Count)
			found++
		}
	}
	assert.Equal(t, 2, found)
}
