package fleet

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The targets of all members add up to the limit. A member gets its need or an equal
// part, whichever is smaller, and without a need it gets no permit.
func TestTableTarget_AddUpToTheLimit(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 11))
		table := Table{Members: map[string]Member{}}
		needy := 0
		for i := range 1 + r.IntN(12) {
			need := max(0, r.IntN(12)-2)
			needy += min(need, 1)
			table.Members[fmt.Sprint(i)] = Member{Need: need, Ticket: r.Int64N(4)}
		}
		limit := r.IntN(40)
		sum := 0
		for id, x := range table.Members {
			n := table.target(id, limit)
			sum += n
			if x.Need == 0 {
				require.Zero(t, n, "seed %d", seed)
				continue
			}
			require.GreaterOrEqual(t, n, min(x.Need, limit/needy), "seed %d", seed)
		}
		require.Equal(t, min(1, needy)*limit, sum, "seed %d: limit %d of %+v", seed, limit, table.Members)
	}
}

// Permits that are divided with a remainder stay with their members if only needs change.
func TestTableTarget_RemainderStays(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 12))
		table := Table{Members: map[string]Member{}}
		for _, id := range []string{"a", "b", "c", "d"} {
			table.Members[id] = Member{Need: 4 + r.IntN(9)}
		}
		table.Members["small"] = Member{Need: 1}
		got := map[string]int{}
		for id := range table.Members {
			got[id] = table.target(id, 12)
		}
		require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3, "d": 2, "small": 1}, got, "seed %d", seed)
	}
}

// If there are fewer permits than members with a need, the lowest tickets get them.
func TestTableTarget_LowTicketsComeFirst(t *testing.T) {
	table := Table{Members: map[string]Member{
		"a": {Need: 9, Ticket: 3}, "b": {Need: 1, Ticket: 1}, "c": {Ticket: 0}, "d": {Need: 2, Ticket: 2}, "e": {Need: 1, Ticket: 2},
	}}
	got := map[string]int{}
	for id := range table.Members {
		got[id] = table.target(id, 2)
	}
	require.Equal(t, map[string]int{"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}, got)
}
