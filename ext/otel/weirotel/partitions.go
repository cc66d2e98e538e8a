package weirotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/partitions"
)

// ObservePartitions reports the partitions of the monitor's worker ([partitions.Config])
// under the name of their pipeline, until the returned registration ends. It asks no
// server. Errors come from the provider. It panics if the name is empty, or the monitor
// or the provider nil.
func ObservePartitions(pipeline string, monitor *partitions.Monitor, provider metric.MeterProvider) (metric.Registration, error) {
	if pipeline == "" {
		panic("weirotel: ObservePartitions: empty name")
	}
	guard.RefuseNil("weirotel: ObservePartitions", "monitor", monitor)
	guard.RefuseNil("weirotel: ObservePartitions", "provider", provider)
	in := instruments{meter: provider.Meter(scope)}
	all := in.upDown("weir.partitions", "Partitions of this worker, by state; unowned: without an owner.", "{partition}")
	lost := in.counter("weir.partitions.lost", "How often the worker has lost a partition.", "{partition}")
	lag := in.gauge("weir.partition.lag", "Elements of the partition that were not read yet.", "{element}")
	name := pipelineKey.String(pipeline)
	in.register(func(_ context.Context, o metric.Observer) error {
		s := monitor.Status()
		for state, n := range tally.PartitionStates(&s) {
			o.ObserveInt64(all, int64(n), metric.WithAttributes(name, stateKey.String(state)))
		}
		o.ObserveInt64(lost, int64(s.Lost), metric.WithAttributes(name))
		for _, p := range s.Partitions {
			if p.Lag >= 0 {
				o.ObserveFloat64(lag, float64(p.Lag), metric.WithAttributes(name, partitionKey.String(p.Name)))
			}
		}
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObservePartitions: %w", in.err)
	}
	return in.registration, nil
}
