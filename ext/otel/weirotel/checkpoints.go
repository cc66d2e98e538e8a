package weirotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveCheckpoints reports the checkpoints of the named pipeline, until the returned
// registration ends. Errors come from the provider. It panics if the name is empty, or
// the coordinator or the provider nil.
func ObserveCheckpoints(
	pipeline string, coordinator *checkpoint.Coordinator, provider metric.MeterProvider,
) (metric.Registration, error) {
	switch {
	case pipeline == "":
		panic("weirotel: ObserveCheckpoints: empty name")
	case coordinator == nil:
		panic("weirotel: ObserveCheckpoints: nil coordinator")
	case guard.IsNil(provider):
		panic("weirotel: ObserveCheckpoints: nil provider")
	}
	in := instruments{meter: provider.Meter(scope)}
	taken := in.counter("weir.checkpoints", "Checkpoints that were stored, or aborted.", "{checkpoint}")
	inRow := in.gauge("weir.checkpoint.failures_in_row", "Checkpoints that were aborted since the last that was stored.", "{checkpoint}")
	success := in.gauge("weir.checkpoint.last_success", "When the last checkpoint was stored, in seconds since 1970.", "s")
	since := in.gauge("weir.checkpoint.under_way_since", "When the checkpoint that is under way was triggered, in seconds since 1970.", "s")
	duration := in.gauge("weir.checkpoint.last_duration", "Time from the trigger of the last checkpoint until it was stored.", "s")
	size := in.gauge("weir.checkpoint.last_size", "Size of the states in the last checkpoint.", "By")

	name := pipelineKey.String(pipeline)
	own := metric.WithAttributeSet(attribute.NewSet(name))
	completed := metric.WithAttributeSet(attribute.NewSet(name, checkpointKey.String("completed")))
	failed := metric.WithAttributeSet(attribute.NewSet(name, checkpointKey.String("failed")))
	in.register(func(_ context.Context, o metric.Observer) error {
		s := coordinator.Stats()
		o.ObserveInt64(taken, int64(s.Completed), completed)
		o.ObserveInt64(taken, int64(s.Failed), failed)
		o.ObserveFloat64(inRow, float64(s.FailedInRow), own)
		if s.UnderWay != 0 {
			o.ObserveFloat64(since, float64(s.Since.UnixMilli())/1000, own)
		}
		if s.LastID != 0 {
			o.ObserveFloat64(success, float64(s.LastTime.UnixMilli())/1000, own)
			o.ObserveFloat64(duration, s.LastDuration.Seconds(), own)
			o.ObserveFloat64(size, float64(s.LastSize), own)
		}
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveCheckpoints: %w", in.err)
	}
	return in.registration, nil
}
