package weirprom

import (
	"context"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

type idempotency struct {
	of            *keys.Keys
	counts        *tally.Counts[keys.Counts]
	read, records []*prometheus.Desc // as tally.Keys and tally.KeyCounts
	counted       *prometheus.Desc
	failures      *prometheus.Desc
}

// NewKeys returns a collector for requests with idempotency keys, with the service's name
// as the label service. The table is counted in the background, like queues of
// [NewQueues]; the other metrics are counters of this process. It panics if the name is
// empty or k is nil.
func NewKeys(service string, k *keys.Keys) prometheus.Collector {
	if service == "" {
		panic("weirprom: NewKeys: empty name")
	}
	guard.RefuseNil("weirprom: NewKeys", "keys", k)
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"service": service})
	}
	return &idempotency{
		k, tally.NewCounts(clock.New(), func(ctx context.Context, _ string) (keys.Counts, error) { return k.Count(ctx) }),
		describe(tally.Keys, desc), describe(tally.KeyCounts, desc),
		desc("weir_keys_counted_timestamp_seconds", "When the table was counted: what the others say of it is of then."),
		desc("weir_keys_count_failures_total", "Counts of the table that failed."),
	}
}

func (i *idempotency) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range i.read {
		descs <- d
	}
	for _, d := range i.records {
		descs <- d
	}
	descs <- i.counted
	descs <- i.failures
}

func (i *idempotency) Collect(metrics chan<- prometheus.Metric) {
	s := i.of.Stats()
	collect(metrics, tally.Keys, i.read, &s)
	last := i.counts.Count("")
	metrics <- prometheus.MustNewConstMetric(i.failures, prometheus.CounterValue, float64(last.Failures))
	if !last.At.IsZero() {
		collect(metrics, tally.KeyCounts, i.records, &last.Counts)
		metrics <- prometheus.MustNewConstMetric(i.counted, prometheus.GaugeValue, float64(last.At.UnixMilli())/1000)
	}
}
