package bench

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func report() Report {
	g := Group{
		Workload: "W0", Variant: "mode=ordered", Title: "nothing", Elems: 1_000_000,
		Rows: []Row{{Impl: "weir", Kind: Weir}, {Impl: "slow", Kind: Peer}, {Impl: "fast", Kind: Peer}, {Impl: "hop", Kind: Floor}},
		Aims: []Aim{
			{Impl: "weir", Against: BestPeer, Max: 1},
			{Impl: "weir", Metric: AllocsPerElem, Max: 2},
			{Impl: "weir", Against: "gone", Max: 2},
			{Impl: "weir", Against: "hop", Max: 2, Or: 110},
		},
	}
	ns := map[string][]float64{"weir": {90, 120, 100}, "slow": {1300, 1500, 1400}, "fast": {100, 100, 200}, "hop": {10, 10, 10}}
	round := make(map[string]int)
	results, err := Measure(g, 3, func(_ Group, r Row) (Sample, error) {
		at := ns[r.Impl][round[r.Impl]]
		s := Sample{NsPerElem: at, CPUPerElem: 2 * at, AllocsPerElem: 3}
		round[r.Impl]++
		return s, nil
	})
	if err != nil {
		panic(err)
	}
	return Report{Group: g, Results: results}
}

func TestReportFindings(t *testing.T) {
	got := report().Findings()
	require.Len(t, got, 4)
	require.Equal(t, "weir ns/elem ≤ 1.00 × best peer: 0.90, met", got[0].String())
	require.Equal(t, "weir allocs/elem ≤ 2.00: 3.00, missed", got[1].String())
	require.Equal(t, "weir ns/elem ≤ 2.00 × gone: , not measured", got[2].String())
	require.Equal(t, "weir ns/elem ≤ 2.00 × hop or 110: 10.0 (100), met", got[3].String())
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	require.NoError(t, report().WriteMarkdown(&b))
	require.Contains(t, b.String(), "nothing: 1,000,000 elements, median of 3.")
	require.Contains(t, b.String(), "| row | kind | ns/elem | min–max | × best peer | × weir | cpu-ns/elem | CPU × best peer | allocs/elem |")
	require.Contains(t, b.String(), "| **weir** | weir | 100 | 90.0–120 | 0.90 | 1.00 | 200 | 0.90 | 3.00 |")
	require.Contains(t, b.String(), "| slow | peer | 1,400 | 1,300–1,500 | 13.0 | 14.0 | 2,800 | 13.0 | 3.00 |")
}

func TestMeasureInterleaves(t *testing.T) {
	var order strings.Builder
	g := Group{Rows: []Row{{Impl: "a"}, {Impl: "b"}, {Impl: "c"}}}
	_, err := Measure(g, 3, func(_ Group, r Row) (Sample, error) {
		order.WriteString(r.Impl)
		return Sample{}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "abcbcacab", order.String())

	failure := errors.New("broken")
	_, err = Measure(g, 3, func(Group, Row) (Sample, error) { return nil, failure })
	require.ErrorIs(t, err, failure)
}

func TestMedian(t *testing.T) {
	require.True(t, math.IsNaN(median(nil)))
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, median([]float64{4, 3, 1, 2}), 0)
}

func TestShort(t *testing.T) {
	for want, v := range map[string]float64{
		"": math.NaN(), "0.25": 0.25, "12.3": 12.34, "123": 123.4, "1,234,568": 1234567.8, "-1,235": -1234.6,
	} {
		require.Equal(t, want, short(v))
	}
}
