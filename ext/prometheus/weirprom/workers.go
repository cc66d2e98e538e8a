package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

type worker struct {
	monitor *delivery.Monitor
	read    []*prometheus.Desc // as tally.Workers
	offset  *prometheus.Desc
}

// NewWorker returns a collector for the monitor's worker ([delivery.WithMonitor]), with
// the name as the label worker. It panics if the name is empty or the monitor nil.
func NewWorker(name string, monitor *delivery.Monitor) prometheus.Collector {
	if name == "" {
		panic("weirprom: NewWorker: empty name")
	}
	guard.RefuseNil("weirprom: NewWorker", "monitor", monitor)
	desc := func(metric, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, labels, prometheus.Labels{"worker": name})
	}
	return &worker{monitor, describe(tally.Workers, desc), desc("weir_worker_clock_offset_seconds",
		"How far the clock of the engine was ahead of the machine's at the last heartbeat.")}
}

func (w *worker) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range w.read {
		descs <- d
	}
	descs <- w.offset
}

func (w *worker) Collect(metrics chan<- prometheus.Metric) {
	s := w.monitor.Status()
	collect(metrics, tally.Workers, w.read, &s)
	metrics <- prometheus.MustNewConstMetric(w.offset, prometheus.GaugeValue, s.ClockOffset.Seconds())
}
