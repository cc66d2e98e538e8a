package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/bench"
	"github.com/weirflow/weir/bench/flink"
)

// The chart and tables in the repository match its results.
func TestFilesAreMadeOfTheResults(t *testing.T) {
	require.NoError(t, run([]string{"-check", "-root", "../../.."}))
}

func group(mode string, rows ...bench.Row) bench.Group {
	return bench.Group{Workload: "W0", Variant: "mode=" + mode, Title: "nothing < something", Rows: rows}
}

var rows = []bench.Row{
	{Impl: "weir", Kind: bench.Weir},
	{Impl: "weir-results", Kind: bench.Weir},
	{Impl: "rill-map", Kind: bench.Peer},
	{Impl: "pool+failsafe", Kind: bench.Peer},
	{Impl: "hop", Kind: bench.Floor},
}

func measured(mode, impl string, ns, cpu float64) bench.Measured {
	return bench.Measured{Group: "W0/mode=" + mode, Impl: impl, Median: map[string]float64{bench.NsPerElem: ns, bench.CPUPerElem: cpu}}
}

// fake is a work in which the flow is twice as fast as the best peer in ordered mode, and
// half as fast in unordered mode.
func fake() section {
	s := section{
		name: "fake", title: "beside nothing", against: "the best peer", peers: true,
		works: []bench.Work{{Ordered: group("ordered", rows...), Unordered: group("unordered", rows...)}},
	}
	for _, mode := range []string{"ordered", "unordered"} {
		s.results = append(s.results, measured(mode, "hop", 1, 1), measured(mode, "rill-map", 1000, 3000),
			measured(mode, "pool+failsafe", 1200, 800), measured(mode, "weir-results", 50, 1500))
	}
	s.results = append(s.results, measured("ordered", "weir", 500, 2000), measured("unordered", "weir", 2000, 4000))
	return s
}

func TestTable(t *testing.T) {
	require.Equal(t, `| ordered, unordered | as a go-streams flow: time | CPU | by Results: time | CPU | by ResultsOf: time | CPU | best peer |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| W0: nothing < something | 2.00, 0.50 | 1.50, 0.75 | 20, 20 | 2.00, 2.00 | | | rill |
`, table(fake()))
}

// Without a measurement of every peer there is no ratio.
func TestRatio_WithoutAllPeers(t *testing.T) {
	s := fake()
	s.results = append(s.results[:2], s.results[3:]...) // pool+failsafe
	require.Equal(t, "\nNot measured yet: W0.\n", table(s))
	_, err := draw([]section{s})
	require.EqualError(t, err, "nothing has been measured")

	whole := fake()
	other := s.works[0]
	other.Ordered.Variant, other.Ordered.Title = "mode=ordered/size=2", "larger"
	whole.works = append(whole.works, other)
	require.Contains(t, table(whole), "\nNot measured yet: W0: larger.\n")
}

func TestTableStandsBetweenItsMarkers(t *testing.T) {
	shown := map[string]bool{}
	page := "before\n<!-- table fake -->\nold\n<!-- end of table -->\nafter\n"
	page, err := insert(page, fake(), shown)
	require.NoError(t, err)
	require.Equal(t, "before\n<!-- table fake -->\n"+table(fake())+"<!-- end of table -->\nafter\n", page)
	require.True(t, shown["fake"])

	_, err = insert("<!-- table fake -->\nold\n", fake(), shown)
	require.EqualError(t, err, "no line <!-- end of table --> after <!-- table fake -->")
}

func TestUnknownArguments(t *testing.T) {
	require.EqualError(t, run([]string{"results.json"}), `unexpected argument "results.json"`)
}

// An outdated file is found, and so is a table that no page contains.
func TestCheckFindsStaleFiles(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "bench", "flink"), 0o755))
	for name, text := range map[string]string{
		"README.md":                "<!-- table peers -->\n<!-- end of table -->\n",
		"bench/flink/results.json": "[]",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	results, err := os.ReadFile("../../results.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "bench", "results.json"), results, 0o600))

	require.EqualError(t, run([]string{"-root", root}), "no file has a line <!-- table flink -->")
	require.NoError(t, os.WriteFile(filepath.Join(root, "bench", "README.md"), []byte("<!-- table flink -->\n<!-- end of table -->\n"), 0o600))
	require.ErrorContains(t, run([]string{"-check", "-root", root}), "chart.svg")
	require.NoError(t, run([]string{"-root", root}))
	require.NoError(t, run([]string{"-check", "-root", root}))
}

// em is a letter's average width, for a font wider than usual.
const em = 0.6

// Titles of works that are not in the chart yet must fit, too.
func TestTitlesHaveRoom(t *testing.T) {
	for _, w := range append(bench.Published(), flink.Published()...) {
		require.LessOrEqual(t, em*13*float64(len([]rune(w.Title()))), float64(plotLeft-12), w.Title())
	}
}

func TestChartHasRoomForItsTexts(t *testing.T) {
	for _, file := range []string{"../../chart.svg", ""} {
		var svg string
		if file == "" {
			var err error
			svg, err = draw([]section{fake()})
			require.NoError(t, err)
			require.Contains(t, svg, ">2.00<")
			require.Contains(t, svg, "nothing &lt; something")
		} else {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			svg = string(text)
		}
		require.Contains(t, svg, "log scale")
		require.Contains(t, svg, "prefers-color-scheme: dark")
		for _, e := range texts(t, svg) {
			size := map[string]float64{"title": 16, "value": 11, "tick": 11, "axis": 11}[e.class]
			if size == 0 {
				size = 13
			}
			wide := em * size * float64(len([]rune(e.text)))
			left, right := e.x, e.x+wide
			switch e.anchor {
			case "end":
				left, right = e.x-wide, e.x
			case "middle":
				left, right = e.x-wide/2, e.x+wide/2
			}
			require.GreaterOrEqual(t, left, 0.0, "%q", e.text)
			require.LessOrEqual(t, right, float64(width), "%q", e.text)
			if e.anchor == "end" && e.class == "" {
				require.Less(t, right, float64(plotLeft), "%q", e.text)
			}
		}
	}
}

type svgText struct {
	class, anchor, text string
	x                   float64
}

func texts(t *testing.T, svg string) (all []svgText) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	var open *svgText
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "text" {
				continue
			}
			open = &svgText{}
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "class":
					open.class = a.Value
				case "text-anchor":
					open.anchor = a.Value
				case "x":
					open.x, err = strconv.ParseFloat(a.Value, 64)
					require.NoError(t, err)
				}
			}
		case xml.CharData:
			if open != nil {
				open.text += string(e)
			}
		case xml.EndElement:
			if open != nil {
				all, open = append(all, *open), nil
			}
		}
	}
}
