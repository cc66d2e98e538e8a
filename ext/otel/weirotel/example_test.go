package weirotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/otel/weirotel"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// busyOnce returns a lookup whose first call fails.
func busyOnce() func(context.Context, string) (string, error) {
	calls := 0
	return func(_ context.Context, key string) (string, error) {
		if calls++; calls == 1 {
			return "", errors.New("busy")
		}
		return strings.ToUpper(key), nil
	}
}

// Spans for the element and for each attempt. A program uses an exporter for its collector
// instead of the exporter in memory.
func ExampleNewTraces() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))

	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(busyOnce()), 5*time.Second, 100,
		strategies.FixedDelay[string](3, time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithObserver(weirotel.NewTraces("lookup", provider)))
	for name, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(name, err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name, "-", span.Status.Code)
	}
	// Output:
	// LHR <nil>
	// lookup attempt - Error
	// lookup attempt - Unset
	// lookup - Unset
}

// The metrics of an operator. A program has a periodic reader with an exporter in place
// of the manual one.
func ExampleNewMetrics() {
	reader := sdkmetric.NewManualReader()
	metrics, err := weirotel.NewMetrics("lookup", sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		fmt.Println(err)
		return
	}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(busyOnce()), 5*time.Second, 100,
		strategies.FixedDelay[string](3, time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithObserver(metrics))
	for range op.Results(slices.Values([]string{"lhr", "cdg"})) {
	}

	var read metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &read); err != nil {
		fmt.Println(err)
	}
	for _, m := range read.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "weir.attempts" {
			fmt.Println(m.Name, m.Unit, sum.DataPoints[0].Value)
		}
	}
	// Output:
	// weir.attempts {attempt} 3
}

// withTrace is a slog.Handler that adds the ids of the trace to lines whose context has
// one.
type withTrace struct{ slog.Handler }

func (h withTrace) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// Lines about an element have the ids of its trace.
func ExampleNewTraces_logs() {
	lines := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch {
		case a.Key == slog.TimeKey:
			return slog.Attr{}
		case strings.HasSuffix(a.Key, "_id"): // they are random
			return slog.Int(a.Key, len(a.Value.String()))
		}
		return a
	}})
	op := asyncop.OrderedWait(asyncop.Blocking(busyOnce()), 5*time.Second, 100,
		asyncop.WithDropOnFailure(),
		asyncop.WithObserver(weirotel.NewTraces("lookup", sdktrace.NewTracerProvider())),
		asyncop.WithLogger(slog.New(withTrace{lines})))
	for range op.Results(slices.Values([]string{"lhr"})) {
	}
	// Output:
	// level=WARN msg="asyncop: element dropped" attempts=1 error=busy in_doubt=true element=lhr trace_id=32 span_id=16
}
