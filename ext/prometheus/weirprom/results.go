package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/internal/tally"
	"github.com/weirflow/weir/internal/guard"
)

type results struct {
	of   *server.Results
	read []*prometheus.Desc // as tally.Results
}

// NewResults returns a collector for the answers that a service keeps, with the service's
// name as the label service. It panics if the name is empty or r is nil.
func NewResults(service string, r *server.Results) prometheus.Collector {
	if service == "" {
		panic("weirprom: NewResults: empty name")
	}
	guard.RefuseNil("weirprom: NewResults", "results", r)
	return &results{r, describe(tally.Results, func(metric, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, labels, prometheus.Labels{"service": service})
	})}
}

func (r *results) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range r.read {
		descs <- d
	}
}

func (r *results) Collect(metrics chan<- prometheus.Metric) {
	s := r.of.Stats()
	collect(metrics, tally.Results, r.read, &s)
}
