package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The figures of the README come from the last run of the benchmarks.
func TestFiguresOfTheReadme(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	page := strings.ReplaceAll(string(text), ",", "")
	for _, row := range []struct{ file, group, impl, metric, figure string }{
		{"results", "W9/mode=unordered/calls=at-once/inflight=64", "weir-results", "ns/elem", "386 ns"},
		{"results", "W1b/mode=unordered", "weir", "ns/elem", "478 ns"},
		{"results", "W9/mode=unordered/calls=at-once/inflight=64", "pool", "ns/elem", "120 ns"},
		{"results", "W9/mode=ordered/calls=sleep/inflight=10000", "weir-results", "ns/elem", "698 ns"},
		{"results", "W2/mode=ordered/inflight=10000/backend=sleep", "weir", "ns/elem", "933 ns"},
		{"results", "W2/mode=ordered/inflight=10000/backend=sleep", "goroutines-reorder", "ns/elem", "734 ns"},
		{"results", "W3/mode=ordered", "weir-results", "ns/elem", "1045 ns"},
		{"results", "W3/mode=ordered", "weir", "ns/elem", "1419 ns"},
		{"results", "W3/mode=ordered", "goroutines-20k-slots", "ns/elem", "1870 ns"},
		{"results", "W4", "weir-ordered", "live-B/elem", "155 bytes"},
		{"results", "W4", "sleeping-goroutines", "live-B/elem", "2651 bytes"},
		{"flink/results", "W2/mode=ordered/inflight=10000", "weir-results", "ns/elem", "430 ns"},
		{"flink/results", "W2/mode=ordered/inflight=10000", "weir", "ns/elem", "548 ns"},
		{"flink/results", "W2/mode=ordered/inflight=10000", "flink-job", "ns/elem", "527 ns"},
	} {
		require.Contains(t, page, row.figure)
		_, unit, _ := strings.Cut(row.figure, " ")
		measured := median(t, row.file, row.group, row.impl, row.metric)
		require.Equal(t, row.figure, fmt.Sprintf("%.0f %s", measured, unit), "%s %s", row.group, row.impl)
	}
}

// median returns what a row of a file of results measured.
func median(t *testing.T, file, group, impl, metric string) float64 {
	t.Helper()
	text, err := os.ReadFile("../bench/" + file + ".json")
	require.NoError(t, err)
	var rows []struct {
		Group, Impl string
		Median      map[string]float64
	}
	require.NoError(t, json.Unmarshal(text, &rows))
	for _, row := range rows {
		if row.Group == group && row.Impl == impl {
			return row.Median[metric]
		}
	}
	t.Fatalf("no row %s %s", group, impl)
	return 0
}
