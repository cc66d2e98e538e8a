package weirotel

import (
	"context"
	"fmt"

	"github.com/benbjohnson/clock"
	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveKeys reports the requests with idempotency keys of the named service, until the
// returned registration ends. The table is counted in the background, like queues of
// [ObserveQueues]; the other metrics are counters of this process. Errors come from the
// provider. It panics if the name is empty, or k or the provider nil.
func ObserveKeys(service string, k *keys.Keys, provider metric.MeterProvider) (metric.Registration, error) {
	if service == "" {
		panic("weirotel: ObserveKeys: empty name")
	}
	guard.RefuseNil("weirotel: ObserveKeys", "keys", k)
	guard.RefuseNil("weirotel: ObserveKeys", "provider", provider)
	counts := tally.NewCounts(clock.New(), func(ctx context.Context, _ string) (keys.Counts, error) { return k.Count(ctx) })
	in := instruments{meter: provider.Meter(scope)}
	read := readings(&in, tally.Keys, serviceKey.String(service))
	records := readings(&in, tally.KeyCounts, serviceKey.String(service))
	failures := in.counter("weir.keys.count_failures", "Counts of the table that failed.", "{count}")
	in.register(func(_ context.Context, o metric.Observer) error {
		s := k.Stats()
		read(o, &s)
		last := counts.Count("")
		report(o, failures, last.Failures, last.Err, serviceKey.String(service))
		if !last.At.IsZero() {
			records(o, &last.Counts)
		}
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveKeys: %w", in.err)
	}
	return in.registration, nil
}
