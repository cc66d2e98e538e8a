package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// Measured is a row of a results file: its medians over all rounds.
type Measured struct {
	Group  string             `json:"group"`
	Impl   string             `json:"impl"`
	Kind   string             `json:"kind"`
	Elems  int                `json:"elems"`
	Median map[string]float64 `json:"median"`
}

// Results are the rows of a results file, written by the table command with -json.
type Results []Measured

// NewResults returns the medians of reports.
func NewResults(reports []Report) Results {
	rows := Results{}
	for _, r := range reports {
		for _, c := range r.Results {
			row := Measured{
				Group: r.Group.Name(), Impl: c.Row.Impl, Kind: c.Row.Kind.String(),
				Elems: r.Group.Elems / max(1, c.Row.Div), Median: map[string]float64{},
			}
			for m := range c.Samples[0] {
				if v := c.Median(m); !math.IsNaN(v) && !math.IsInf(v, 0) {
					row.Median[m] = v
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// Write writes the results as JSON.
func (rs Results) Write(w io.Writer) error {
	data, err := json.MarshalIndent(rs, "", "\t")
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// ReadResults reads a results file. A row without a time is an error.
func ReadResults(file string) (Results, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rows Results
	if err := json.Unmarshal(data, &rows); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, r := range rows {
		if r.Median[NsPerElem] <= 0 {
			return nil, fmt.Errorf("%s: %s, %s: no %s", file, r.Group, r.Impl, NsPerElem)
		}
	}
	return rows, nil
}

func (rs Results) find(g Group, impl string) (Measured, bool) {
	for _, r := range rs {
		if r.Group == g.Name() && r.Impl == impl {
			return r, true
		}
	}
	return Measured{}, false
}

// Comparison compares a row of weir with the fastest peer of its group.
type Comparison struct {
	Time float64 // weir's throughput / the peer's
	CPU  float64 // weir's elements per CPU second / the peer's; NaN if not measured
	Peer string
}

// Compare returns false if the group lacks the row, or if the row or a peer was not
// measured: the best peer may be missing.
func (rs Results) Compare(g Group, impl string) (Comparison, bool) {
	own, ok := rs.find(g, impl)
	if !ok {
		return Comparison{}, false
	}
	var best Measured
	for _, row := range g.Rows {
		if row.Kind != Peer {
			continue
		}
		r, ok := rs.find(g, row.Impl)
		if !ok {
			return Comparison{}, false
		}
		if best.Median == nil || r.Median[NsPerElem] < best.Median[NsPerElem] {
			best = r
		}
	}
	if best.Median == nil {
		return Comparison{}, false
	}
	return Comparison{
		Time: best.Median[NsPerElem] / own.Median[NsPerElem],
		CPU:  best.Median[CPUPerElem] / own.Median[CPUPerElem],
		Peer: best.Impl,
	}, true
}

// Series are the rows of weir in the README and the chart.
var Series = []struct{ Impl, Title string }{
	{"weir", "as a go-streams flow"},
	{"weir-results", "by Results"},
	{"weir-chained", "by ResultsOf"},
}

// Work is a workload in both modes.
type Work struct{ Ordered, Unordered Group }

// Title returns "W1: completes at once".
func (w Work) Title() string { return w.Ordered.Workload + ": " + w.Ordered.Title }

// Works pairs the groups of the given workloads that exist in both modes. Without
// arguments it takes all workloads.
func Works(groups []Group, workloads ...string) []Work {
	var works []Work
	for _, g := range groups {
		rest, ordered := strings.CutPrefix(g.Variant, modeVariant(true))
		if !ordered || len(workloads) > 0 && !slices.Contains(workloads, g.Workload) {
			continue
		}
		for _, other := range groups {
			if other.Workload == g.Workload && other.Variant == modeVariant(false)+rest {
				works = append(works, Work{g, other})
			}
		}
	}
	return works
}

// Published returns the workloads in the README and the chart, which have peers.
func Published() []Work { return Works(Groups(Config{}), "W1", "W1b", "W2", "W3", "W3b", "W9") }

// PeerTitle returns a peer's name for readers.
func PeerTitle(impl string) string {
	base, retrier, retries := strings.Cut(impl, "+")
	title := "by hand"
	switch {
	case base == "map" || base == "passthrough":
		title = "go-streams"
	case strings.HasPrefix(base, "rill"):
		title = "rill"
	case strings.HasPrefix(base, "conc"):
		title = "conc"
	case strings.HasPrefix(base, "flink"):
		title = "Flink"
	}
	if !retries || retrier == "by-hand" {
		return title
	}
	return title + " + " + map[string]string{
		"failsafe": "failsafe-go", "backoff": "cenkalti/backoff", "retry-go": "retry-go",
	}[retrier]
}
