package tally

import (
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/partitions"
)

// PartitionStates returns how many partitions are in each state, and how many are unowned
// if that is known.
func PartitionStates(s *partitions.Status) map[string]int {
	n := map[string]int{"running": 0, "failing": 0, "leaving": 0, "ended": 0}
	for _, p := range s.Partitions {
		n[p.State]++
	}
	delete(n, jobs.Unowned)
	if s.Unowned >= 0 {
		n[jobs.Unowned] = s.Unowned
	}
	return n
}
