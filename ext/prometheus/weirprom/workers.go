package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

// worker is the collector of a worker. It reads its status at the scrape, and asks no engine.
type worker struct {
	monitor *delivery.Monitor
	read    []*prometheus.Desc // as tally.Workers
}

// NewWorker returns a collector for the worker that has the monitor ([delivery.WithMonitor]). The name is its label worker. It panics if the
// name is empty or the monitor nil.
func NewWorker(name string, monitor *delivery.Monitor) prometheus.Collector {
	if name == "" {
		panic("weirprom: NewWorker: empty name")
	}
	guard.RefuseNil("weirprom: NewWorker", "monitor", monitor)
	return &worker{monitor, describe(tally.Workers, func(metric, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, labels, prometheus.Labels{"worker": name})
	})}
}

func (w *worker) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range w.read {
		descs <- d
	}
}

func (w *worker) Collect(metrics chan<- prometheus.Metric) {
	s := w.monitor.Status()
	collect(metrics, tally.Workers, w.read, &s)
}
