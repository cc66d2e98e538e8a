package drive

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
)

// The memory of a copy is used again, keeps nothing alive, and is given back after a burst.
func TestSpareOfCopies(t *testing.T) {
	inFlight := 10_000
	k := &checkpointing[string, int]{d: new(Driver[string, int])}
	flies := func(n int) { k.d.published.set(observe.Stats{InFlight: int64(n)}, core.Never) }
	flies(inFlight)
	k.prepare()
	items := k.takeSpare(inFlight)
	require.Empty(t, items)
	require.GreaterOrEqual(t, cap(items), inFlight)
	first := &items[:1][0]
	for range inFlight {
		items = append(items, core.Item[string, int]{In: "x", Rest: 5, First: 1, Spent: 1, Attempts: 1, Kind: core.Control})
	}
	require.Nil(t, k.spare.Load(), "taken")
	k.keepSpare(items)
	k.prepare()
	again := k.takeSpare(inFlight)
	require.Same(t, first, &again[:1][0], "used again")
	for _, it := range again[:cap(again)] {
		require.Zero(t, it)
	}
	require.GreaterOrEqual(t, cap(k.takeSpare(inFlight)), inFlight, "there is none")

	k.keepSpare(again[:100])
	require.Nil(t, k.spare.Load(), "made for much more")
	flies(0)
	k.prepare()
	small := k.takeSpare(minSpare)
	require.Less(t, cap(small), 2*minSpare)
	k.keepSpare(small)
	flies(inFlight)
	k.prepare()
	require.GreaterOrEqual(t, cap(*k.spare.Load()), inFlight, "too small")
	require.GreaterOrEqual(t, cap(k.takeSpare(1_000_000)), 1_000_000)
}

func TestLargeStateComesInPieces(t *testing.T) {
	s := testCodec(t, false)
	want := make([]core.Item[string, int], 3000)
	for i := range want {
		want[i].In = strings.Repeat("x", i)
	}
	state, err := s.Encode(Snapshot[string, int]{Items: want})
	require.NoError(t, err)
	require.Len(t, state, 5)
	got, err := s.Decode(participant.State{state.Bytes()}.Bytes())
	require.NoError(t, err)
	require.Equal(t, want, got.Items)
}
