package weirotel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

var quiet = slog.New(slog.DiscardHandler)

// collect returns all values that a reader gets, by name and attributes but for the
// operator's; of a histogram the count.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	values := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		key := strings.TrimPrefix(name, "weir.")
		for _, a := range set.ToSlice() {
			if a.Key != "weir.operator.name" && a.Key != "weir.pipeline.name" && a.Key != "weir.queue.name" && a.Key != "weir.backend.name" && a.Key != "weir.service.name" {
				key += " " + a.Value.AsString()
			} else {
				assert.Equal(t, "rows", a.Value.AsString())
			}
		}
		assert.NotContains(t, values, key)
		values[key] = v
	}
	for _, scope := range got.ScopeMetrics {
		assert.Equal(t, "github.com/weirflow/weir/ext/otel/weirotel", scope.Scope.Name)
		for _, m := range scope.Metrics {
			assert.NotEmpty(t, m.Description, m.Name)
			assert.NotEmpty(t, m.Unit, m.Name)
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
					assert.Equal(t, "s", m.Unit)
					assert.Equal(t, 0.0001, p.Bounds[0])
					assert.Equal(t, 100.0, p.Bounds[len(p.Bounds)-1])
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return values
}

func nonZero(values map[string]float64) map[string]float64 {
	values = maps.Clone(values)
	maps.DeleteFunc(values, func(_ string, v float64) bool { return v == 0 })
	return values
}

// All metrics of an operator, as a reader gets them.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		metrics, err := weirotel.NewMetrics("rows", provider)
		require.NoError(t, err)
		op := tallytest.NewOperator(asyncop.WithObserver(metrics), asyncop.WithLogger(quiet))
		go func() {
			for range op.Out() {
			}
		}()
		before := collect(t, reader)
		assert.Equal(t, map[string]float64{"elements.capacity": 10, "calls.limit": 10}, nonZero(before))
		assert.Contains(t, before, "elements.ended emitted")
		for i := range 4 {
			op.In() <- i
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, map[string]float64{
			"elements.accepted": 4, "elements.ended emitted": 1, "results.emitted": 2,
			"elements.capacity": 10, "calls.limit": 10, "elements.in_flight": 3, "elements.waiting_for_retry": 2, "calls.running": 1, "elements.oldest_age": 1, "last_error.age": 1,
			"attempts": 4, "attempts.ended result": 1, "attempts.ended empty MISSING": 1, "attempts.ended error BUSY": 1,
			"attempt.duration": 3, "element.duration": 1, "element.queue.duration": 1, "retry.backoff": 2,
		}, nonZero(collect(t, reader)))
		close(op.In())
		require.NoError(t, op.Wait())
		assert.Equal(t, map[string]float64{
			"elements.accepted": 4, "elements.ended emitted": 2, "elements.ended dropped": 2, "results.emitted": 4,
			"elements.in_doubt": 2, "elements.timed_out": 1,
			"attempts": 7, "attempts.ended result": 2, "attempts.ended empty MISSING": 1, "attempts.ended error BUSY": 3,
			"element.failures BUSY: down BUSY": 1, "element.failures asyncop: timed out after # and # attempt ": 1,
			"attempts.ended error": 1, "retries result": 1, "retries error": 2, "retries.refused strategy": 1,
			"attempt.duration": 7, "element.duration": 4, "element.queue.duration": 4, "retry.backoff": 3,
		}, nonZero(collect(t, reader)))

		require.NoError(t, metrics.Unregister())
		assert.Equal(t, map[string]float64{
			"attempt.duration": 7, "element.duration": 4, "element.queue.duration": 4, "retry.backoff": 3,
		}, collect(t, reader))
	})
}

// A provider that discards metrics is not an error.
func TestMetrics_Discarded(t *testing.T) {
	metrics, err := weirotel.NewMetrics("rows", noop.NewMeterProvider())
	require.NoError(t, err)
	op := asyncop.OrderedWait(asyncop.Func(double), 0, 4, asyncop.WithObserver(metrics))
	for _, err := range op.Results(slices.Values([]int{1})) {
		require.NoError(t, err)
	}
	require.NoError(t, metrics.Unregister())
}

// The numbers of a pipeline's coordinator.
func TestCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		store := &tallytest.SlowStore{}
		c, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(quiet))
		require.NoError(t, err)
		registration, err := weirotel.ObserveCheckpoints("rows", c, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		require.NoError(t, err)
		c.Host().Register("sevenBytes", tallytest.SevenBytes{})
		require.NoError(t, c.Start())
		assert.Equal(t, map[string]float64{"checkpoints completed": 0, "checkpoints failed": 0, "checkpoint.failures_in_row": 0},
			collect(t, reader))
		_, err = c.Trigger(t.Context())
		require.NoError(t, err)
		stored := float64(time.Now().Unix())
		store.Fails = tallytest.ErrDown
		_, err = c.Trigger(t.Context())
		require.ErrorIs(t, err, tallytest.ErrDown)
		assert.Equal(t, map[string]float64{
			"checkpoints completed": 1, "checkpoints failed": 1, "checkpoint.failures_in_row": 1,
			"checkpoint.last_success": stored, "checkpoint.last_duration": 2, "checkpoint.last_size": 7,
		}, collect(t, reader))
		require.NoError(t, c.Close())
		require.NoError(t, registration.Unregister())
		assert.Empty(t, collect(t, reader))
	})
	_, err := weirotel.ObserveCheckpoints("rows", newCoordinator(t), refusing{})
	assert.ErrorIs(t, err, tallytest.ErrDown)
	_, err = weirotel.NewMetrics("rows", refusing{})
	assert.ErrorIs(t, err, tallytest.ErrDown)
}

func newCoordinator(t *testing.T) *checkpoint.Coordinator {
	t.Helper()
	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	return c
}

// refusing is a provider whose meters refuse counters and gauges.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

func (refusingMeter) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return noop.Int64ObservableCounter{}, tallytest.ErrDown
}

func (refusingMeter) Float64ObservableGauge(string, ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return noop.Float64ObservableGauge{}, tallytest.ErrDown
}

// Lines that the operator logs about an element have its span in their context, so that a
// handler can add the ids of its trace.
func TestLogLinesKnowTheTrace(t *testing.T) {
	var text bytes.Buffer
	r := newRecorder(t)
	op := asyncop.OrderedWait(asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return tallytest.ErrDown }), 0, 4,
		asyncop.WithObserver(weirotel.NewTraces("rows", r)), asyncop.WithDropOnFailure(),
		asyncop.WithLogger(slog.New(withTrace{slog.NewJSONHandler(&text, nil)})))
	for _, err := range op.Results(slices.Values([]int{1})) {
		require.NoError(t, err)
	}
	var line struct {
		Msg   string
		Trace string `json:"trace_id"`
		Span  string `json:"span_id"`
	}
	require.NoError(t, json.Unmarshal(text.Bytes(), &line))
	assert.Equal(t, "asyncop: element dropped", line.Msg)
	for _, s := range r.Ended() {
		if s.Name() == "rows" {
			assert.Equal(t, s.SpanContext().TraceID().String(), line.Trace)
			assert.Equal(t, s.SpanContext().SpanID().String(), line.Span)
		}
	}
}
