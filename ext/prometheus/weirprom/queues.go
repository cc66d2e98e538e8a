package weirprom

import (
	"fmt"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

type queues struct {
	tally *tally.Counts[store.Counts]
	names []string
}

var (
	queueMessages = prometheus.NewDesc("weir_queue_messages", "Messages in the queue.", []string{"queue", "cause"}, nil)
	queueOldest   = prometheus.NewDesc("weir_queue_oldest_age_seconds", "Since the oldest message in the queue arrived; 0 if there is none.",
		[]string{"queue"}, nil)
	queueCounted  = prometheus.NewDesc("weir_queue_counted_timestamp_seconds", "When the queue was counted: what the others say is of then.", []string{"queue"}, nil)
	queueFailures = prometheus.NewDesc("weir_queue_count_failures_total", "Counts of the queue that failed.", []string{"queue"}, nil)
	queueReasons  = prometheus.NewDesc("weir_queue_reason_messages", "Messages in the queue that have this among their reasons.",
		[]string{"queue", "reason"}, nil)
)

// NewQueues returns a collector for queues of a store, such as its dead letters, layers
// and outboxes. They are counted in the background: a scrape begins a count and reports
// it if it takes less than 100 ms, else the previous count. A count takes 10 s at most,
// and the pause between two counts is 20 times as long. If a count fails, the previous
// count is reported, and a counter of failures grows. It panics if the store is nil, if
// names is empty, or if a name is empty or named twice.
func NewQueues(s store.Inspector, names ...string) prometheus.Collector {
	guard.RefuseNil("weirprom: NewQueues", "store", s)
	if err := tally.CheckQueues(names); err != nil {
		panic(fmt.Sprintf("weirprom: NewQueues: %v", err))
	}
	return &queues{tally.NewQueues(s, clock.New()), names}
}

func (*queues) Describe(descs chan<- *prometheus.Desc) {
	descs <- queueMessages
	descs <- queueOldest
	descs <- queueReasons
	descs <- queueCounted
	descs <- queueFailures
}

func (q *queues) Collect(metrics chan<- prometheus.Metric) {
	for _, name := range q.names {
		last := q.tally.Count(name)
		// With an invalid metric promhttp would send no metrics at all.
		metrics <- prometheus.MustNewConstMetric(queueFailures, prometheus.CounterValue, float64(last.Failures), name)
		if last.At.IsZero() {
			continue
		}
		c := last.Counts
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
		}
		rest := c.Messages
		for cause, n := range c.Causes {
			rest -= n
			gauge(queueMessages, float64(n), name, cause.String())
		}
		gauge(queueMessages, float64(rest), name, "")
		gauge(queueOldest, c.Age.Seconds(), name)
		gauge(queueCounted, float64(last.At.UnixMilli())/1000, name)
		for reason, n := range c.Reasons {
			gauge(queueReasons, float64(n), name, reason)
		}
	}
}
