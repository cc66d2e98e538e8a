package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

type backends []*backend.Backend

var backendState = prometheus.NewDesc("weir_backend_state", "1 for the state that the backend is in, 0 for the others.", []string{"backend", "state"}, nil)

var backendDescs = func() (descs []*prometheus.Desc) {
	for _, n := range tally.BackendNumbers {
		name := "weir_backend_" + n.Name
		switch {
		case n.Counts:
			name += "_total"
		case n.Unit == "s":
			name += "_timestamp_seconds"
		}
		descs = append(descs, prometheus.NewDesc(name, n.Help, []string{"backend"}, nil))
	}
	return descs
}()

// NewBackends returns a collector for backends, whose names must differ. It panics if a
// backend is nil.
func NewBackends(all ...*backend.Backend) prometheus.Collector {
	for _, b := range all {
		guard.RefuseNil("weirprom: NewBackends", "backend", b)
	}
	return backends(all)
}

func (backends) Describe(descs chan<- *prometheus.Desc) {
	descs <- backendState
	for _, d := range backendDescs {
		descs <- d
	}
}

func (all backends) Collect(metrics chan<- prometheus.Metric) {
	for _, b := range all {
		s := b.Stats()
		for _, state := range tally.BackendStates {
			v := 0.0
			if state == s.State {
				v = 1
			}
			metrics <- prometheus.MustNewConstMetric(backendState, prometheus.GaugeValue, v, s.Name, state.String())
		}
		for i, n := range tally.BackendNumbers {
			kind := prometheus.GaugeValue
			if n.Counts {
				kind = prometheus.CounterValue
			}
			if v, some := n.Of(&s); some {
				metrics <- prometheus.MustNewConstMetric(backendDescs[i], kind, v, s.Name)
			}
		}
	}
}
