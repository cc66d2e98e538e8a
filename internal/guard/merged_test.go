package guard_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/guard"
)

func TestMerged(t *testing.T) {
	type config struct {
		N    int
		Text string
		List []int
		Map  map[string]int
	}
	require.Zero(t, guard.Merged[config](nil))
	a, b := map[string]int{"a": 1, "b": 1}, map[string]int{"b": 2}
	got := guard.Merged([]config{{N: 2, Text: "a", List: []int{1}, Map: a}, {N: 3, List: []int{2}}, {Map: b}})
	require.Equal(t, config{N: 3, Text: "a", List: []int{1, 2}, Map: map[string]int{"a": 1, "b": 2}}, got)
	require.Equal(t, map[string]int{"a": 1, "b": 1}, a, "the caller's map is as it was")
}
