package weirotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveResults reports the answers that the named service keeps, until the returned
// registration ends. Errors come from the provider. It panics if the name is empty, or r
// or the provider nil.
func ObserveResults(service string, r *server.Results, provider metric.MeterProvider) (metric.Registration, error) {
	if service == "" {
		panic("weirotel: ObserveResults: empty name")
	}
	guard.RefuseNil("weirotel: ObserveResults", "results", r)
	guard.RefuseNil("weirotel: ObserveResults", "provider", provider)
	in := instruments{meter: provider.Meter(scope)}
	read := readings(&in, tally.Results, serviceKey.String(service))
	in.register(func(_ context.Context, o metric.Observer) error {
		s := r.Stats()
		read(o, &s)
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveResults: %w", in.err)
	}
	return in.registration, nil
}
