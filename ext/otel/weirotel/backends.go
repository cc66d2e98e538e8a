package weirotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveBackends reports backends, whose names must differ, until the returned
// registration ends. Errors come from the provider. It panics if the provider or a
// backend is nil.
func ObserveBackends(provider metric.MeterProvider, all ...*backend.Backend) (metric.Registration, error) {
	guard.RefuseNil("weirotel: ObserveBackends", "provider", provider)
	for _, b := range all {
		guard.RefuseNil("weirotel: ObserveBackends", "backend", b)
	}
	in := instruments{meter: provider.Meter(scope)}
	state := in.gauge("weir.backend.state", "1 for the state that the backend is in, 0 for the others.", "1")
	gauges, counters := map[string]metric.Float64Observable{}, map[string]metric.Int64Observable{}
	for _, n := range tally.BackendNumbers {
		name, unit := "weir.backend."+n.Name, "{"+n.Unit+"}"
		switch {
		case n.Counts:
			counters[n.Name] = in.counter(name, n.Help, unit)
		case n.Unit == "s":
			gauges[n.Name] = in.gauge(name, n.Help, n.Unit)
		default:
			gauges[n.Name] = in.gauge(name, n.Help, unit)
		}
	}
	in.register(func(_ context.Context, o metric.Observer) error {
		for _, b := range all {
			s := b.Stats()
			name := backendKey.String(s.Name)
			for _, one := range tally.BackendStates {
				v := 0.0
				if one == s.State {
					v = 1
				}
				o.ObserveFloat64(state, v, metric.WithAttributes(name, attribute.String("weir.backend.state", one.String())))
			}
			for _, n := range tally.BackendNumbers {
				v, some := n.Of(&s)
				switch {
				case !some:
				case n.Counts:
					o.ObserveInt64(counters[n.Name], int64(v), metric.WithAttributes(name))
				default:
					o.ObserveFloat64(gauges[n.Name], v, metric.WithAttributes(name))
				}
			}
		}
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveBackends: %w", in.err)
	}
	return in.registration, nil
}
