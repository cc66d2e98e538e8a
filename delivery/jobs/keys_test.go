package jobs_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// ofKey is a message of a key.
func ofKey(id, key string) store.Message { return store.Message{Meta: message.Meta{ID: id, Key: key}} }

func TestKeys(t *testing.T) {
	mock := clock.NewMock()
	s := memory.Open(memory.WithClock(mock))
	begun := mock.Now()
	require.NoError(t, s.Put(t.Context(), "orders", ofKey("1", "a"), ofKey("2", "b")))
	mock.Add(time.Minute)
	require.NoError(t, s.Put(t.Context(), "orders-retry-1", ofKey("3", "b")))
	require.NoError(t, s.Put(t.Context(), "orders-retry-12", ofKey("4", "b")))
	require.NoError(t, s.Put(t.Context(), "orders-blocked", ofKey("5", "b")))
	require.NoError(t, s.Put(t.Context(), "orders-dead", ofKey("6", "a"), ofKey("7", "c")))
	for _, other := range []string{"orders2", "orders-retry-x", "big-orders", "orders-dead-dead", "orders2-retry-1"} {
		require.NoError(t, s.Put(t.Context(), other, ofKey("8", "other")))
	}
	list, err := jobs.Keys(t.Context(), s, "orders", jobs.KeyFilter{})
	require.NoError(t, err)
	for i := range list {
		require.True(t, list[i].Next.Equal(list[i].Oldest)) // they have no delay
		list[i].Next = time.Time{}
	}
	require.Equal(t, []store.KeyCounts{
		{Key: "b", Waiting: 4, Oldest: begun},
		{Key: "a", Waiting: 1, Dead: 1, Oldest: begun},
		{Key: "c", Dead: 1},
	}, list)

	list, err = jobs.Keys(t.Context(), s, "orders", jobs.KeyFilter{Max: 1, Contains: "a"})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "a", list[0].Key)
}

func TestKeys_TheDefaultIsFifty(t *testing.T) {
	s := memory.Open()
	for i := range 60 {
		require.NoError(t, s.Put(t.Context(), "orders", ofKey(fmt.Sprint(i), fmt.Sprint("key", i))))
	}
	list, err := jobs.Keys(t.Context(), s, "orders", jobs.KeyFilter{})
	require.NoError(t, err)
	require.Len(t, list, 50)
}

func TestKeys_Refused(t *testing.T) {
	s := memory.Open()
	_, err := jobs.Keys(t.Context(), struct{ store.Inspector }{s}, "orders", jobs.KeyFilter{})
	require.ErrorContains(t, err, "does not count by key: it is not a store.KeyCounter. Use SQLite or PostgreSQL")
	_, err = jobs.Keys(t.Context(), s, "orders", jobs.KeyFilter{Max: -1})
	require.ErrorContains(t, err, "KeyFilter.Max is -1: must not be negative")
	for _, name := range []string{"orders-retry-1", "orders-dead", "orders-blocked"} {
		_, err = jobs.Keys(t.Context(), s, name, jobs.KeyFilter{})
		require.ErrorContains(t, err, `belongs to queue "orders": name that queue`)
	}
	_, err = jobs.Keys(t.Context(), s, "", jobs.KeyFilter{})
	require.ErrorContains(t, err, "the queue has no name")
}
