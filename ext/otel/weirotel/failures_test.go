package weirotel_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// exporter has the names of the metrics that it was given last, with the sum of their
// values.
type exporter struct {
	sdkmetric.Exporter
	got map[string]float64
}

func (*exporter) Temporality(k sdkmetric.InstrumentKind) metricdata.Temporality {
	return sdkmetric.DefaultTemporalitySelector(k)
}

func (*exporter) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (e *exporter) Export(_ context.Context, all *metricdata.ResourceMetrics) error {
	e.got = map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					e.got[m.Name] += float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					e.got[m.Name] += p.Value
				}
			}
		}
	}
	return nil
}

func (*exporter) ForceFlush(context.Context) error { return nil }
func (*exporter) Shutdown(context.Context) error   { return nil }

// While queues and tables cannot be counted, a periodic reader exports the other metrics,
// and the numbers of the counts before. The errors go to the error handler.
func TestFailedCounts(t *testing.T) {
	var errs []string
	handler := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { errs = append(errs, err.Error()) }))
	defer otel.SetErrorHandler(handler)
	synctest.Test(t, func(t *testing.T) {
		down := true
		k, db := tallytest.NewKeys(t.Context(), &down)
		defer db.Close()
		e := &exporter{}
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(e)))
		defer func() { require.NoError(t, provider.Shutdown(context.Background())) }()
		_, err := weirotel.ObserveQueues(tallytest.Queues{Inspector: memory.Open(), Down: &down}, provider, "rows")
		require.NoError(t, err)
		_, err = weirotel.ObserveKeys("rows", k, provider)
		require.NoError(t, err)
		_, err = weirotel.ObserveWorker("rows", &delivery.Monitor{}, provider)
		require.NoError(t, err)
		export := func() map[string]float64 {
			require.NoError(t, provider.ForceFlush(t.Context()))
			require.EqualValues(t, 1, e.got["weir.worker.state"])
			return e.got
		}
		values := export()
		require.NotContains(t, values, "weir.queue.messages")
		require.NotContains(t, values, "weir.keys.records")
		down = false
		before := export()
		require.Contains(t, before, "weir.queue.messages")
		require.EqualValues(t, 5, before["weir.keys.records"])
		down = true
		after := export()
		for _, name := range []string{"weir.queue.count_failures", "weir.keys.count_failures"} {
			require.EqualValues(t, 1, before[name])
			require.EqualValues(t, 2, after[name])
			delete(before, name)
			delete(after, name)
		}
		require.Equal(t, before, after)
	})
	require.Contains(t, errs, `weirotel: queue "rows": down`)
	require.Contains(t, strings.Join(errs, "\n"), "weirotel: keys: count: ")
}
