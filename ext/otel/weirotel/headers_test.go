package weirotel_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/otel/weirotel"
)

// The trace of a request travels with the message that it puts.
func TestTraceHeaders(t *testing.T) {
	require.Nil(t, weirotel.TraceHeaders(context.Background()))
	id, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	require.NoError(t, err)
	span, err := trace.SpanIDFromHex("b7ad6b7169203331")
	require.NoError(t, err)
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled}))
	e := memory.Open()
	q := delivery.NewQueue[int](e, "orders")
	require.NoError(t, q.Put(ctx, 1, delivery.Headers(weirotel.TraceHeaders(ctx))))
	entries, err := e.List(ctx, "orders", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, entries[0].Meta.Headers)
}
