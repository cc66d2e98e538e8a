package storebench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// KeysBehindAFlood checks that keys behind many messages of another key are taken before
// all of those are parked, and in turn. countParked counts the parked messages.
func KeysBehindAFlood(t *testing.T, s store.InOrder, countParked func() int) {
	t.Helper()
	putMany(t, s, 3000, func(int) string { return "flood" })
	for _, key := range []string{"a", "b", "c"} {
		putSome(t, s, 2, key)
	}
	var taken []string
	for range 7 {
		one, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
		require.NoError(t, err)
		require.Len(t, one, 1)
		taken = append(taken, one[0].Meta.Key)
		if one[0].Meta.Key != "flood" {
			require.NoError(t, s.Done(t.Context(), one[0].Lease))
		}
	}
	require.Equal(t, []string{"flood", "a", "b", "c", "a", "b", "c"}, taken)
	require.Less(t, countParked(), 1000, "other keys wait for messages of the flood to be parked")
	none, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none, "only messages behind the first of the flood are left")
	require.Equal(t, 2999, countParked())
}
