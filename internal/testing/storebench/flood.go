package storebench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// KeysBehindAFlood checks that keys behind many messages of another key are taken before
// all of those are parked, and in turn. A message without a key is taken afterwards, by
// calls that are made when the store wakes a consumer. countParked counts the parked
// messages.
func KeysBehindAFlood(t *testing.T, s OrderedEngine, countParked func() int) {
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
	begun := countParked()
	require.Less(t, begun, 1000, "other keys wait for messages of the flood to be parked")
	require.Greater(t, begun, 250, "calls with a small limit park few messages")

	require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "without a key"}}))
	none, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Less(t, countParked()-begun, 500, "a call does not pause")
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	woken := make(chan struct{}, 1) // one is enough: the consumer takes after it
	var waking sync.WaitGroup
	waking.Go(func() {
		_ = s.Wake(ctx, "q", func(bool) {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	})
	var last []store.Leased
	for len(last) == 0 && ctx.Err() == nil {
		select {
		case <-woken:
		case <-ctx.Done():
		}
		last, err = s.TakeInOrder(t.Context(), "q", 1, time.Hour)
		require.NoError(t, err)
	}
	stop()
	waking.Wait()
	require.Len(t, last, 1, "consumers are not woken while messages are parked")
	require.Equal(t, "without a key", last[0].Meta.ID)
	require.Equal(t, 2999, countParked())
}
