package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row in results.json exists in the code, and has the same kind.
func TestResultsFitTheCode(t *testing.T) {
	results, err := ReadResults("results.json")
	require.NoError(t, err)
	require.NotEmpty(t, results)
	kinds := map[[2]string]string{}
	for _, g := range Groups(Config{}) {
		for _, r := range g.Rows {
			kinds[[2]string{g.Name(), r.Impl}] = r.Kind.String()
		}
	}
	for _, r := range results {
		kind, ok := kinds[[2]string{r.Group, r.Impl}]
		require.True(t, ok, "no row %s of %s", r.Impl, r.Group)
		require.Equal(t, kind, r.Kind, "%s of %s", r.Impl, r.Group)
	}
}

func TestCompare(t *testing.T) {
	rs := NewResults([]Report{report()})
	g := report().Group
	c, ok := rs.Compare(g, "weir")
	require.True(t, ok)
	require.Equal(t, Comparison{Time: 1, CPU: 1, Peer: "fast"}, c)
	_, ok = rs.Compare(g, "gone")
	require.False(t, ok)
	g.Rows = append(g.Rows, Row{Impl: "new", Kind: Peer})
	_, ok = rs.Compare(g, "weir")
	require.False(t, ok, "a peer has not been measured")
}

// The README shows every workload with peers, in every variant that exists in both modes.
func TestPublished(t *testing.T) {
	var titles []string
	for _, w := range Published() {
		titles = append(titles, w.Title())
	}
	require.Len(t, titles, 1+1+6+1+1+3)
	require.Contains(t, titles, "W9: sleeps for 1 ms, 10,000 in flight")
	require.Contains(t, titles, "W2: calls back after 1 ms, 100 in flight")
}

func TestPeerTitle(t *testing.T) {
	for impl, want := range map[string]string{
		"map": "go-streams", "passthrough": "go-streams", "passthrough-buffered": "by hand", "callback-reorder": "by hand",
		"rill-orderedmap": "rill", "conc-stream+by-hand": "conc", "pool+retry-go": "by hand + retry-go",
		"goroutines-20k-slots+failsafe": "by hand + failsafe-go", "flink-job": "Flink",
	} {
		require.Equal(t, want, PeerTitle(impl), impl)
	}
}

func TestResults_Bad(t *testing.T) {
	for text, want := range map[string]string{
		"| row |": "invalid character",
		`[{"group":"W1","impl":"x","median":{"cpu-ns/elem":1}}]`: "W1, x: no ns/elem",
	} {
		file := filepath.Join(t.TempDir(), "results.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := ReadResults(file)
		require.ErrorContains(t, err, want)
	}
}
