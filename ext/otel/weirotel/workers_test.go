package weirotel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// pointsOf returns the values of a metric by its attributes; of a histogram the count.
func pointsOf(t *testing.T, reader *sdkmetric.ManualReader, name string) map[string]float64 {
	t.Helper()
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	values := map[string]float64{}
	encoder := attribute.DefaultEncoder()
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					if m.Name == name {
						values[p.Attributes.Encoded(encoder)] = float64(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					if m.Name == name {
						values[p.Attributes.Encoded(encoder)] = float64(p.Count)
					}
				}
			}
		}
	}
	return values
}

// A worker's metrics are the numbers of its monitor, and the time of its messages has the
// names of the semantic conventions.
func TestWorker(t *testing.T) {
	engine := memory.Open()
	q, out := delivery.NewQueue[int](engine, "numbers"), delivery.NewQueue[int](engine, "out")
	monitor := &delivery.Monitor{}
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := weirotel.ObserveWorker("payments", monitor, provider)
	require.NoError(t, err)
	metrics, err := weirotel.NewMetrics("charge", provider, attribute.String("messaging.system", "postgresql"))
	require.NoError(t, err)
	for i := range 10 {
		require.NoError(t, q.Put(t.Context(), i))
	}
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) {
		if i == 3 {
			return 0, errors.New("bad")
		}
		return i, nil
	}), time.Minute, 10, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet), asyncop.WithObserver(metrics))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_, err := delivery.Run(ctx, q, op, out, delivery.WithLogger(quiet), delivery.WithMonitor(monitor))
		assert.NoError(t, err)
	}()
	require.Eventually(t, func() bool {
		s := monitor.Status()
		return s.Done+s.HandedOver == 10
	}, time.Minute, time.Millisecond)
	stop()
	<-ended
	assert.Equal(t, map[string]float64{"weir.worker.name=payments": 10}, pointsOf(t, reader, "weir.worker.messages.received"))
	settled := pointsOf(t, reader, "weir.worker.messages.settled")
	assert.InDelta(t, 9, settled["weir.settlement=done,weir.worker.name=payments"], 0)
	assert.InDelta(t, 1, settled["weir.settlement=handed_over,weir.worker.name=payments"], 0)
	assert.InDelta(t, 1, pointsOf(t, reader, "weir.worker.state")["weir.state=ended,weir.worker.name=payments"], 0)

	process := pointsOf(t, reader, "messaging.process.duration")
	const common = "messaging.operation.name=process,messaging.system=postgresql,weir.operator.name=charge"
	assert.Len(t, process, 2)
	for set, n := range process {
		assert.Contains(t, set, common)
		if n == 1 {
			assert.Contains(t, set, "error.type=*errors.errorString")
		} else {
			assert.InDelta(t, 9, n, 0)
			assert.NotContains(t, set, "error.type")
		}
	}
	require.NoError(t, registration.Unregister())

	_, err = weirotel.ObserveWorker("payments", monitor, refusing{})
	assert.ErrorIs(t, err, tallytest.ErrDown)
	assert.Panics(t, func() { _, _ = weirotel.ObserveWorker("", monitor, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveWorker("payments", nil, provider) })
	assert.Panics(t, func() { _, _ = weirotel.ObserveWorker("payments", monitor, nil) })
}
