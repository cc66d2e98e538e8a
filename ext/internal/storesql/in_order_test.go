package storesql

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/storearg"
)

func TestPlan(t *testing.T) {
	a, b, c := "a", "b", "c"
	candidates := []Candidate{
		{Position: 12, Key: &a}, {Position: 11, Key: &a}, // 11 is the first of its key
		{Position: 20},                                                 // without a key
		{Position: 33, Key: &b},                                        // behind 31, which is not due
		{Position: 43, Key: &c, IsHead: true}, {Position: 42, Key: &c}, // 43 became the head before 42 was visible
	}
	require.Equal(t, []string{"a", "b", "c"}, Needs(candidates))
	keys := map[string]KeyState{"a": {First: 11}, "b": {First: 31}, "c": {Head: 43, First: 42}}
	p := Plan(candidates, keys, 10)
	require.Equal(t, []int64{11, 20, 43}, p.Take)
	require.Equal(t, map[int64][]int64{11: {12}, 31: {33}, 43: {42}}, p.Park)
	require.Equal(t, []int64{31}, p.Become, "a head that is not taken now")

	p = Plan(candidates, keys, 0)
	require.Empty(t, p.Take)
	require.ElementsMatch(t, []int64{11, 31}, p.Become, "11 is due, and there is no room for it")
}

func TestPlan_LargeMessages(t *testing.T) {
	p := Plan([]Candidate{{Position: 1, Size: storearg.MaxBytes - 1}, {Position: 2, Size: 1}, {Position: 3, Size: 1}}, nil, 10)
	require.Equal(t, []int64{1, 2}, p.Take)
}

func TestSweeps(t *testing.T) {
	var s Sweeps
	now := time.Unix(1000, 0)
	after, isDue := s.Begin("q", now)
	require.True(t, isDue)
	require.Empty(t, after)
	_, isDue = s.Begin("q", now)
	require.False(t, isDue, "another call looks")
	_, isDue = s.Begin("other", now)
	require.True(t, isDue)
	s.End("q", "k", now)
	_, isDue = s.Begin("q", now.Add(sweepStep-1))
	require.False(t, isDue)
	now = now.Add(sweepStep)
	after, isDue = s.Begin("q", now)
	require.True(t, isDue, "it has not visited all keys")
	require.Equal(t, "k", after)
	s.End("q", "", now)
	_, isDue = s.Begin("q", now.Add(sweepEvery-1))
	require.False(t, isDue)
	after, isDue = s.Begin("q", now.Add(sweepEvery))
	require.True(t, isDue)
	require.Empty(t, after)
}

func TestKeyRounds(t *testing.T) {
	var r KeyRounds
	require.Empty(t, r.After("q"))
	r.Continue("q", storearg.Next("k"))
	require.Equal(t, "k", r.After("q"))
	require.Empty(t, r.After("other"))
	r.Continue("q", "")
	require.Empty(t, r.After("q"), "the round has ended")
}
