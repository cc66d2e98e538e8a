package weirotel

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// TraceHeaders returns the trace of ctx as headers of a message, in W3C trace context,
// for delivery.Headers: [Traces] links the element to the span in ctx. It returns nil if
// ctx has no span.
//
//	err := orders.Put(r.Context(), order, delivery.Headers(weirotel.TraceHeaders(r.Context())))
func TraceHeaders(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	if len(headers) == 0 {
		return nil
	}
	return headers
}
