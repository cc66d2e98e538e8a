package bench

import (
	"fmt"
	"slices"
)

// w5 measures whether an element costs more if the queue is larger or more elements wait.
func w5(c Config) []Group {
	capacities := []int{1_000, 10_000, 100_000, 1_000_000}
	waiting := []int{0, 100_000, 1_000_000}
	elems := c.elems(2_000_000, 20_000)
	if elems < 1_000_000 {
		capacities, waiting = []int{100, 1_000, 10_000}, []int{0, 1_000, 10_000}
	}
	var groups []Group
	for _, ordered := range []bool{true, false} {
		g := Group{
			Workload: "W5", Variant: modeVariant(ordered) + "/vary=capacity", Elems: elems, Heavy: !c.Short,
			Title: "cost per element against the capacity, half of it in flight all the time",
		}
		for _, capacity := range capacities {
			p := pipeline{ends: c.Ends, ordered: ordered, calls: once}
			g.Rows = append(g.Rows, weirW5Capacity(c, p, capacity)...)
		}
		first, last := capacities[0], capacities[len(capacities)-1]
		g.Aims = []Aim{{
			Impl: fmt.Sprintf("weir-capacity-%d", last), Against: fmt.Sprintf("weir-capacity-%d", first), Max: 1.5,
		}}
		groups = append(groups, g)
	}
	g := Group{
		Workload: "W5", Variant: "mode=unordered/vary=waiting", Elems: c.elems(500_000, 10_000), Heavy: !c.Short,
		Title: "cost per element against how many wait for a retry meanwhile",
	}
	for _, w := range waiting {
		g.Rows = append(g.Rows, weirW5Waiting(c, w)...)
	}
	g.Aims = []Aim{{
		Impl: fmt.Sprintf("weir-waiting-%d", slices.Max(waiting)), Against: "weir-waiting-0", Max: 1.5,
	}}
	return append(groups, g)
}
