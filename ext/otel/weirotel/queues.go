package weirotel

import (
	"context"
	"fmt"

	"github.com/benbjohnson/clock"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// ObserveQueues reports queues of a store, such as its dead letters and layers, until the
// returned registration ends. They are counted in the background: a collection begins a
// count and reports it if it takes less than 100 ms, else the previous count. A count
// takes 10 s at most, and the pause between two counts is 20 times as long. If a count
// fails, [otel.Handle] gets the error, and the previous count is reported. Errors come
// from the provider. It panics if the store or the provider is nil, if names is empty, or
// if a name is empty or named twice.
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
	failures := in.counter("weir.queue.count_failures", "Counts of the queue that failed.", "{count}")
	in.register(func(_ context.Context, o metric.Observer) error {
		for _, name := range names {
			queue := queueKey.String(name)
			last := counts.Count(name)
			report(o, failures, last.Failures, last.Err, queue)
			if last.At.IsZero() {
				continue
			}
			c := last.Counts
			gauge := func(g metric.Float64Observable, v float64, more ...attribute.KeyValue) {
				o.ObserveFloat64(g, v, metric.WithAttributes(append(more, queue)...))
			}
			rest := c.Messages
			for cause, n := range c.Causes {
				rest -= n
				gauge(messages, float64(n), causeKey.String(cause.String()))
			}
			gauge(messages, float64(rest), causeKey.String(""))
			gauge(oldest, c.Age.Seconds())
			for reason, n := range c.Reasons {
				gauge(reasons, float64(n), reasonKey.String(reason))
			}
		}
		return nil
	})
	if in.err != nil {
		return nil, fmt.Errorf("weirotel: ObserveQueues: %w", in.err)
	}
	return in.registration, nil
}

// report reports failed counts. The callback does not return their error, because a
// periodic reader would then export no metrics at all.
func report(o metric.Observer, failures metric.Int64Observable, n int, err error, of attribute.KeyValue) {
	o.ObserveInt64(failures, int64(n), metric.WithAttributes(of))
	if err != nil {
		otel.Handle(fmt.Errorf("weirotel: %w", err))
	}
}
