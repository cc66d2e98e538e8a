package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/checkpoint"
)

type checkpoints struct {
	coordinator *checkpoint.Coordinator
	desc        []*prometheus.Desc // as checkpointReadings
}

var checkpointReadings = []struct {
	name, help string
	kind       prometheus.ValueType
	of         func(checkpoint.Stats) float64
}{
	{
		"weir_checkpoints_completed_total", "Checkpoints that were stored.", prometheus.CounterValue,
		func(s checkpoint.Stats) float64 { return float64(s.Completed) },
	},
	{
		"weir_checkpoints_failed_total", "Checkpoints that were aborted.", prometheus.CounterValue,
		func(s checkpoint.Stats) float64 { return float64(s.Failed) },
	},
	{
		"weir_checkpoint_failures_in_row", "Checkpoints that were aborted since the last that was stored.", prometheus.GaugeValue,
		func(s checkpoint.Stats) float64 { return float64(s.FailedInRow) },
	},
	{
		"weir_checkpoint_last_success_timestamp_seconds", "When the last checkpoint was stored; 0 if this process has stored none.",
		prometheus.GaugeValue, func(s checkpoint.Stats) float64 {
			if s.LastTime.IsZero() {
				return 0
			}
			return float64(s.LastTime.UnixMilli()) / 1000
		},
	},
	{
		"weir_checkpoint_under_way_since_timestamp_seconds", "When the checkpoint that is under way was triggered; 0 if none is.",
		prometheus.GaugeValue, func(s checkpoint.Stats) float64 {
			if s.UnderWay == 0 {
				return 0
			}
			return float64(s.Since.UnixMilli()) / 1000
		},
	},
	{
		"weir_checkpoint_last_duration_seconds", "Time from the trigger of the last checkpoint until it was stored.",
		prometheus.GaugeValue, func(s checkpoint.Stats) float64 { return s.LastDuration.Seconds() },
	},
	{
		"weir_checkpoint_last_size_bytes", "Size of the states in the last checkpoint.", prometheus.GaugeValue,
		func(s checkpoint.Stats) float64 { return float64(s.LastSize) },
	},
}

// NewCheckpoints returns a collector for the checkpoints of a pipeline, named by the
// label pipeline. It panics if the name is empty or the coordinator nil.
func NewCheckpoints(pipeline string, coordinator *checkpoint.Coordinator) prometheus.Collector {
	switch {
	case pipeline == "":
		panic("weirprom: NewCheckpoints: empty name")
	case coordinator == nil:
		panic("weirprom: NewCheckpoints: nil coordinator")
	}
	c := &checkpoints{coordinator: coordinator}
	for _, r := range checkpointReadings {
		c.desc = append(c.desc, prometheus.NewDesc(r.name, r.help, nil, prometheus.Labels{"pipeline": pipeline}))
	}
	return c
}

func (c *checkpoints) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		descs <- d
	}
}

func (c *checkpoints) Collect(metrics chan<- prometheus.Metric) {
	s := c.coordinator.Stats()
	for i, r := range checkpointReadings {
		metrics <- prometheus.MustNewConstMetric(c.desc[i], r.kind, r.of(s))
	}
}
