package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// results are medians in which weir needs ns and the best of two peers 1,000.
func results(t *testing.T, ns float64) []byte {
	t.Helper()
	var rows []row
	for _, b := range bars {
		rows = append(rows,
			row{b.group, "slow", "peer", map[string]float64{nsPerElem: 5_000}},
			row{b.group, "fast", "peer", map[string]float64{nsPerElem: 1_000}},
			row{b.group, "floor", "floor", map[string]float64{nsPerElem: 1}},
			row{b.group, "weir", "weir", map[string]float64{nsPerElem: ns}},
			row{b.group, "weir-results", "weir", map[string]float64{nsPerElem: ns / 2}})
	}
	data, err := json.Marshal(rows)
	require.NoError(t, err)
	return data
}

func TestChart(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(nil, bytes.NewReader(results(t, 250)), &out))
	svg := out.String()
	require.True(t, strings.HasPrefix(svg, "<?xml"))
	for _, b := range bars {
		require.Contains(t, svg, b.title)
	}
	require.Contains(t, svg, ">4.0<", "1,000 by 250")
	require.Contains(t, svg, ">8.0<")

	out.Reset()
	require.NoError(t, run([]string{"-format", "png"}, bytes.NewReader(results(t, 1200)), &out))
	require.Equal(t, "\x89PNG", out.String()[:4])
}

func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		in   string
		err  string
	}{
		"not JSON":      {nil, "| row |", "reading results"},
		"no rows":       {nil, "[]", "the results have no row weir of W1/mode=ordered"},
		"no time":       {nil, `[{"group":"W1","impl":"x","kind":"peer"}]`, "W1, x: no ns/elem"},
		"a file's name": {[]string{"results.json"}, "", `unexpected argument "results.json"`},
		"no such image": {[]string{"-format", "bmp"}, string(results(t, 1)), "bmp"},
	} {
		err := run(c.args, strings.NewReader(c.in), &bytes.Buffer{})
		require.ErrorContains(t, err, c.err, name)
	}
}
