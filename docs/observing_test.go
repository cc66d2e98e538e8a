package docs_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/otel/weirotel"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/partitions"
)

func Example_stats() {
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithName("lookup"))
	for range op.Results(slices.Values([]string{"lhr", "cdg"})) {
	}
	s := op.Stats() // at any time, from any goroutine
	fmt.Println("accepted", s.Accepted, "in flight", s.InFlight, "waiting", s.WaitingForRetry, "running", s.Running)
	fmt.Println("completed", s.Completed, "failures", s.Failures, "retries", s.Retries())
	// Output:
	// accepted 2 in flight 0 waiting 0 running 0
	// completed 2 failures 0 retries 0
}

type payment struct{ ID, Card string }

func (p payment) LogValue() slog.Value { return slog.StringValue(p.ID) } // never the card

func Example_logging() {
	logger := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	op := asyncop.OrderedWait(asyncop.Func(payFor[payment]), 5*time.Second, 100,
		asyncop.WithName("payments"),
		asyncop.WithLogger(logger))
	for range op.Results(slices.Values([]payment{{"1", "4242"}})) {
	}
	fmt.Println(op.Stats().Completed)
	// Output:
	// 1
}

func Example_prometheus() {
	registry := prometheus.NewRegistry()
	metrics := weirprom.New("payments")
	registry.MustRegister(metrics)
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100,
		asyncop.WithName("payments"),
		asyncop.WithObserver(metrics))
	for range op.Results(slices.Values([]string{"lhr", "cdg"})) {
	}
	families, err := registry.Gather()
	for _, f := range families {
		if f.GetName() == "weir_elements_accepted_total" {
			fmt.Println(f.GetMetric()[0].GetCounter().GetValue(), err)
		}
	}
	// Output:
	// 2 <nil>
}

func TestPrometheusOfCheckpoints(t *testing.T) {
	registry := prometheus.NewRegistry()
	coordinator, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	registry.MustRegister(weirprom.NewCheckpoints("flights", coordinator))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 7)
}

func TestPrometheusOfPartitions(t *testing.T) {
	registry, monitor := prometheus.NewRegistry(), &partitions.Monitor{}
	registry.MustRegister(weirprom.NewPartitions("flights", monitor))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 2)
}

func TestOpenTelemetry(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	require.NoError(t, observed(sdkmetric.NewMeterProvider(), sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))))
	require.Len(t, spans.GetSpans(), 2)
}

func observed(meterProvider metric.MeterProvider, tracerProvider trace.TracerProvider) error {
	metrics, err := weirotel.NewMetrics("payments", meterProvider)
	if err != nil {
		return err
	}
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100,
		asyncop.WithName("payments"),
		asyncop.WithObserver(metrics),
		asyncop.WithObserver(weirotel.NewTraces("payments", tracerProvider)))
	for _, err := range op.Results(slices.Values([]string{"lhr"})) {
		if err != nil {
			return err
		}
	}
	return metrics.Unregister()
}

// withTrace is a slog.Handler that adds the id of the trace to lines whose context has
// one.
type withTrace struct{ slog.Handler }

func (h withTrace) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func Example_traceIDs() {
	lines := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey:
			return slog.Attr{}
		case "trace_id": // it is random
			return slog.Int(a.Key, len(a.Value.String()))
		}
		return a
	}})
	op := asyncop.OrderedWait(asyncop.Func(func(context.Context, string, asyncop.ResultFuture[string]) error { return io.EOF }), 0, 100,
		asyncop.WithDropOnFailure(),
		asyncop.WithLogger(slog.New(withTrace{lines})),
		asyncop.WithObserver(weirotel.NewTraces("lookup", sdktrace.NewTracerProvider())))
	for range op.Results(slices.Values([]string{"lhr"})) {
	}
	// Output:
	// level=WARN msg="asyncop: element dropped" attempts=1 error=EOF reason=CONNECTION_LOST_IN_FLIGHT in_doubt=true element=lhr trace_id=32
}

// requestIDs gives each element an id, which its calls and the lines about it find in
// their context.
type requestIDs struct{ last int }

type requestID struct{}

func (o *requestIDs) Accepted(ctx context.Context, element any, restored bool) context.Context {
	o.last++
	return context.WithValue(ctx, requestID{}, o.last)
}

func (o *requestIDs) AttemptStarted(ctx context.Context, attempt int) context.Context { return ctx }

func (o *requestIDs) AttemptEnded(ctx context.Context, outcome observe.Outcome) {}

func (o *requestIDs) Ended(ctx context.Context, ending observe.Ending) {
	fmt.Println("request", ctx.Value(requestID{}), ending.How, "after", ending.Attempts, "attempt")
}

func Example_observer() {
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithObserver(&requestIDs{}))
	for range op.Results(slices.Values([]string{"lhr", "cdg"})) {
	}
	// Output:
	// request 1 emitted after 1 attempt
	// request 2 emitted after 1 attempt
}
