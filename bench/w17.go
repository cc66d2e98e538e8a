package bench

import "time"

// In W17, one element in missEvery misses the cache.
const missEvery = 20

// w17 has a cache in front of a backend: 95 % of the calls complete at once, 5 % after a
// millisecond.
func w17(c Config) []Group {
	const capacity, answerTime = 10_000, time.Millisecond
	var groups []Group
	for _, ordered := range []bool{true, false} {
		p := pipeline{ends: c.Ends, ordered: ordered, calls: once}
		groups = append(groups, Group{
			Workload: "W17", Variant: modeVariant(ordered), Title: "95 % complete at once, 5 % after 1 ms",
			Elems: c.elems(1_000_000, 4_000), Rows: weirW17(c, p, capacity, answerTime),
		})
	}
	return groups
}
