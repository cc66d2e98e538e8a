package storebench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Damaged checks laws D4 and W2 after damage has made the Meta of message "b" in the
// queue "q" unreadable: other messages are still taken, and "b" arrives with its payload
// and position.
func Damaged(t *testing.T, s store.Inspector, damage func()) {
	t.Helper()
	for _, id := range []string{"a", "b", "c"} {
		m := store.Message{Meta: message.Meta{ID: id, Reasons: []string{"TIMED_OUT"}}, Payload: []byte(id)}
		require.NoError(t, s.Put(t.Context(), "q", m))
	}
	damage()
	check := func(m store.Message) {
		require.Equal(t, "weir_messages//2", m.Meta.ID)
		require.True(t, m.Meta.UnsafeToRepeat, "what its history said is lost")
		require.Contains(t, m.Meta.LastError, "position 2")
		require.Equal(t, "b", string(m.Payload))
	}
	counts, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 3, counts.Messages)
	list, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, list, 3)
	check(list[1].Message)
	for i, want := range []string{"a", "", "c"} {
		taken, err := s.Take(t.Context(), "q", 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		if want != "" {
			require.NoError(t, taken[0].Damage)
			require.Equal(t, want, taken[0].Meta.ID)
			require.NoError(t, s.Done(t.Context(), taken[0].Lease))
			continue
		}
		require.Equal(t, 1, i)
		require.ErrorContains(t, taken[0].Damage, "the column meta of the row at position 2")
		check(taken[0].Message)
		m := taken[0].Message
		m.Cause = store.Undecodable
		require.NoError(t, s.Move(t.Context(), store.Move{Lease: taken[0].Lease, Queue: "q-dead", Message: m}))
	}
	list, err = s.List(t.Context(), "q-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, list, 1)
	check(list[0].Message)
}
