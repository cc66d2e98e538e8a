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

// KeysBehindAFlood checks messages behind a flood, which is many messages of one key. The
// messages of other keys are taken in turn, and messages without a key as well, before the
// flood is parked. Its rest is parked by calls that are made when the store wakes a
// consumer. countParked counts the parked messages. age lets two seconds pass for the
// engine.
func KeysBehindAFlood(t *testing.T, s OrderedEngine, countParked func() int, age func()) {
	t.Helper()
	const flood = 4000
	putMany(t, s, flood, func(int) string { return "flood" })
	for _, key := range []string{"a", "b", "c"} {
		putSome(t, s, 2, key)
	}
	takeOne := func(calls int) store.Message {
		var one []store.Leased
		for range calls {
			var err error
			one, err = s.TakeInOrder(t.Context(), "q", 1, time.Hour)
			require.NoError(t, err)
			if len(one) > 0 {
				break
			}
		}
		require.Len(t, one, 1)
		if one[0].Meta.Key != "flood" {
			require.NoError(t, s.Done(t.Context(), one[0].Lease))
		}
		return one[0].Message
	}
	var taken []string
	for range 7 {
		taken = append(taken, takeOne(1).Meta.Key)
	}
	require.Equal(t, []string{"flood", "a", "b", "c", "a", "b", "c"}, taken)
	begun := countParked()
	require.Less(t, begun, 1000, "other keys wait for messages of the flood to be parked")
	require.Greater(t, begun, 250, "calls with a small limit park few messages")

	for _, id := range []string{"1", "2", "3"} {
		require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: id}}))
	}
	age()
	for _, want := range []string{"1", "2", "3"} {
		require.Equal(t, want, takeOne(3).Meta.ID) // a search that begins again needs more than one call to get past the flood
	}
	require.Less(t, countParked(), flood*9/10, "messages without a key wait for the flood to be parked")
	begun = countParked()
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
	for countParked() < flood-1 && ctx.Err() == nil {
		select {
		case <-woken:
		case <-ctx.Done():
		}
		none, err = s.TakeInOrder(t.Context(), "q", 1, time.Hour)
		require.NoError(t, err)
		require.Empty(t, none)
	}
	require.Equal(t, flood-1, countParked(), "consumers are not woken while messages are parked")
	stop()
	waking.Wait()
}
