package weirprom_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

func upper(_ context.Context, key string) (string, error) { return strings.ToUpper(key), nil }

// The metrics of an operator, as Prometheus gets them from the program's /metrics.
func Example() {
	registry := prometheus.NewRegistry()
	metrics := weirprom.New("lookup")
	registry.MustRegister(metrics)

	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100,
		asyncop.WithName("lookup"),
		asyncop.WithObserver(metrics))
	for _, err := range op.Results(slices.Values([]string{"lhr", "cdg"})) {
		if err != nil {
			fmt.Println(err)
		}
	}

	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "weir_elements_accepted_total") || strings.HasPrefix(line, "weir_element_duration_seconds_count") {
			fmt.Print(line)
		}
	}
	// Output:
	// weir_element_duration_seconds_count{operator="lookup"} 2
	// weir_elements_accepted_total{operator="lookup"} 2
}

// Checkpoints have a collector of their own.
func ExampleNewCheckpoints() {
	coordinator, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithInterval(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(weirprom.NewCheckpoints("flights", coordinator))

	families, err := registry.Gather()
	for _, f := range families {
		fmt.Println(f.GetName())
	}
	fmt.Println(err)
	// Output:
	// weir_checkpoint_failures_in_row
	// weir_checkpoint_last_duration_seconds
	// weir_checkpoint_last_size_bytes
	// weir_checkpoint_last_success_timestamp_seconds
	// weir_checkpoint_under_way_since_timestamp_seconds
	// weir_checkpoints_completed_total
	// weir_checkpoints_failed_total
	// <nil>
}
