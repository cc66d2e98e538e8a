package weirotel

import (
	"context"
	"errors"
	"fmt"

	"github.com/benbjohnson/clock"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveQueues reports queues of a store, such as its dead letters and layers, until the registration that it returns is ended. They are
// counted in the background: a collection begins a count and reports it if it takes less than 100 ms, else it reports the previous count. A
// count takes 10 s at most, and the pause between two counts is 20 times as long. Errors come from the provider. It panics if the store or the
// provider is nil, if names is empty, or if a name is empty or named twice.
func ObserveQueues(s store.Inspector, provider metric.MeterProvider, names ...string) (metric.Registration, error) {
	guard.RefuseNil("weirotel: ObserveQueues", "store", s)
	guard.RefuseNil("weirotel: ObserveQueues", "provider", provider)
	if err := tally.CheckQueues(names); err != nil {
		panic(fmt.Sprintf("weirotel: ObserveQueues: %v", err))
	}
	counts := tally.NewQueues(s, clock.New())
	in := instruments{meter: provider.Meter(scope)}
	messages := in.gauge("weir.queue.messages", "Messages in the queue.", "{message}")
	oldest := in.gauge("weir.queue.oldest_age", "Since the oldest message in the queue arrived; 0 if there is none.", "s")
	reasons := in.gauge("weir.queue.reason.messages", "Messages in the queue that have this among their reasons.", "{message}")
	in.register(func(_ context.Context, o metric.Observer) error {
		var failed error
		for _, name := range names {
			c, at, err := counts.Count(name)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("weirotel: %w", err))
				continue
			}
			if at.IsZero() { // the first count goes on
				continue
			}
			queue := queueKey.String(name)
			gauge := func(g metric.Float64Observable, v float64, more ...attribute.KeyValue) {
				o.ObserveFloat64(g, v, metric.WithAttributes(append(more, queue)...))
			}
			rest := c.Messages
			for cause, n := range c.Causes {
				rest -= n
				gauge(messages, float64(n), causeKey.String(string(cause)))
			}
			gauge(messages, float64(rest), causeKey.String(""))
			gauge(oldest, c.Age.Seconds())
			for reason, n := range c.Reasons {
				gauge(reasons, float64(n), reasonKey.String(reason))
			}
		}
		return failed
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveQueues: %w", in.err)
	}
	return in.registration, nil
}
