package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	wm "github.com/weirflow/weir/message"
)

// A transaction that has purged all messages of a queue fails: the order of its keys
// is as before.
func TestEngineTakeInOrder_FailedTransaction(t *testing.T) {
	for range 50 {
		s := memory.Open()
		of := func(id string) store.Message { return store.Message{Meta: wm.Meta{ID: id, Key: "k"}} }
		require.NoError(t, s.Put(t.Context(), "q", of("a"), of("b")))
		taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), 0, taken[0].Lease))
		entries, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		fails := errors.New("it fails")
		require.ErrorIs(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			for _, e := range entries {
				_, err := tx.Edit(ctx, store.Edit{Do: store.Purge, Queue: "q", Entry: e})
				require.NoError(t, err)
			}
			return fails
		}), fails)
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, "a", taken[0].Meta.ID)
		s.Close()
	}
}

// A message is released for good. The next message of its key is delivered.
func TestEngineTakeInOrder_SetAsideMessage(t *testing.T) {
	s := memory.Open()
	defer s.Close()
	of := func(id string) store.Message { return store.Message{Meta: wm.Meta{ID: id, Key: "k"}} }
	require.NoError(t, s.Put(t.Context(), "q", of("bad"), of("next")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.NoError(t, s.Release(t.Context(), storearg.ForGood, taken[0].Lease))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "next", taken[0].Meta.ID)
	require.NoError(t, s.Done(t.Context(), taken[0].Lease))
}
