package flink

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/bench"
)

// TestMain also stands in for the Java side when a server starts this binary: it answers
// every line with its length, and a line with capacity 0 with an error.
func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] != "weirbench.Server" {
		goleak.VerifyTestMain(m)
		return
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch line := in.Text(); {
		case strings.Contains(line, "capacity=0"):
			fmt.Println(`{"Error":"no capacity"}`)
		case line == "nonsense":
			fmt.Println("?")
		default:
			fmt.Printf("{\"Sample\":{\"ns/elem\":%d,\"cpu-ns/elem\":1,\"live-B/elem\":1}}\n", len(line))
		}
	}
}

// The rows of weir run with few elements, and each checks its own output.
func TestWeirRows(t *testing.T) {
	for _, g := range Groups(Config{Short: true}) {
		for _, r := range g.Rows {
			if strings.HasPrefix(r.Impl, "weir") || r.Impl == "go-backend" {
				s, err := bench.RunRow(g.Group, r)
				require.NoError(t, err)
				require.Positive(t, s[bench.NsPerElem], "%s %s", g.Name(), r.Impl)
			}
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range Groups(Config{}) {
		require.False(t, seen[g.Name()], "two groups %s", g.Name())
		seen[g.Name()] = true
		for _, a := range g.Aims {
			for _, impl := range []string{a.Impl, a.Against} {
				require.True(t, hasRow(g.Group, impl), "%s: aim with %s", g.Name(), impl)
			}
		}
	}
	for _, w := range Published() {
		for _, s := range bench.Series {
			require.True(t, hasRow(w.Ordered, s.Impl), "%s: %s", w.Title(), s.Impl)
		}
	}
}

func hasRow(g bench.Group, impl string) bool {
	for _, r := range g.Rows {
		if r.Impl == impl {
			return true
		}
	}
	return false
}

// The rows of both sides run in turn, and the ratios compare weir with the job.
func TestMeasure(t *testing.T) {
	g := Groups(Config{Java: os.Args[0], Short: true})[0]
	require.Equal(t, "W1/mode=ordered", g.Name())
	runs := map[string]int{}
	report, err := g.Measure(2, func(r bench.Row, _ bench.Sample) { runs[r.Impl]++ })
	require.NoError(t, err)
	require.Equal(t, 2, runs["flink-job"])
	require.Equal(t, 2, runs["weir-results"])
	c, ok := bench.NewResults([]bench.Report{report}).Compare(g.Group, "weir")
	require.True(t, ok)
	require.Equal(t, "flink-job", c.Peer)
}

func TestJavaFails(t *testing.T) {
	s := &server{java: os.Args[0]}
	require.NoError(t, s.start())
	_, err := s.run("capacity=0")
	require.EqualError(t, err, "in Java: no capacity")
	_, err = s.run("nonsense")
	require.ErrorContains(t, err, `answer from Java "?\n"`)
	_, err = s.run("fine")
	require.NoError(t, err, "after a failure the next run goes on")
	require.NoError(t, s.cmd.Process.Kill())
	_, err = s.run("fine")
	require.Error(t, err)
	require.Error(t, s.close())

	require.EqualError(t, (&server{}).start(), "no command for Java")
}
