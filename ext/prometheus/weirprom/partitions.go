package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/partitions"
)

type assigned struct {
	monitor         *partitions.Monitor
	all, lost, lags *prometheus.Desc
}

// NewPartitions returns a collector for the partitions of the monitor's worker
// ([partitions.Config]), with the pipeline's name as the label pipeline. It asks no
// server. It panics if the name is empty or the monitor nil.
func NewPartitions(pipeline string, monitor *partitions.Monitor) prometheus.Collector {
	if pipeline == "" {
		panic("weirprom: NewPartitions: empty name")
	}
	guard.RefuseNil("weirprom: NewPartitions", "monitor", monitor)
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, prometheus.Labels{"pipeline": pipeline})
	}
	return &assigned{
		monitor,
		desc("weir_partitions", "Partitions of this worker, by state; unowned: without an owner, as far as it knows.", "state"),
		desc("weir_partitions_lost_total", "How often the worker has lost a partition."),
		desc("weir_partition_lag", "Elements of the partition that were not read yet; missing if its input does not know.", "partition"),
	}
}

func (a *assigned) Describe(descs chan<- *prometheus.Desc) {
	descs <- a.all
	descs <- a.lost
	descs <- a.lags
}

func (a *assigned) Collect(metrics chan<- prometheus.Metric) {
	s := a.monitor.Status()
	for state, n := range tally.PartitionStates(&s) {
		metrics <- prometheus.MustNewConstMetric(a.all, prometheus.GaugeValue, float64(n), state)
	}
	metrics <- counted(a.lost, int64(s.Lost))
	for _, p := range s.Partitions {
		if p.Lag >= 0 {
			metrics <- prometheus.MustNewConstMetric(a.lags, prometheus.GaugeValue, float64(p.Lag), p.Name)
		}
	}
}
