package weirotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveWorker reports the monitor's worker ([delivery.WithMonitor]) under this name,
// until the returned registration ends. It does not ask the engines. Errors come from the
// provider. It panics if the name is empty, or the monitor or the provider nil.
func ObserveWorker(name string, monitor *delivery.Monitor, provider metric.MeterProvider) (metric.Registration, error) {
	if name == "" {
		panic("weirotel: ObserveWorker: empty name")
	}
	guard.RefuseNil("weirotel: ObserveWorker", "monitor", monitor)
	guard.RefuseNil("weirotel: ObserveWorker", "provider", provider)
	in := instruments{meter: provider.Meter(scope)}
	read := readings(&in, tally.Workers, workerKey.String(name))
	offset := in.gauge("weir.worker.clock_offset", "How far the clock of the engine was ahead of the machine's at the last heartbeat.", "s")
	own := metric.WithAttributes(workerKey.String(name))
	in.register(func(_ context.Context, o metric.Observer) error {
		s := monitor.Status()
		read(o, &s)
		o.ObserveFloat64(offset, s.ClockOffset.Seconds(), own)
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveWorker: %w", in.err)
	}
	return in.registration, nil
}
