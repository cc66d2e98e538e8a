package memory_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	wm "github.com/weirflow/weir/message"
)

// A transaction that has purged leased messages fails: their leases count for the limit of
// their key again.
func TestEngineTakeByKey_FailedTransaction(t *testing.T) {
	e := memory.Open()
	defer e.Close()
	for i := range 4 {
		require.NoError(t, e.Put(t.Context(), "q", store.Message{Meta: wm.Meta{ID: strconv.Itoa(i), Key: "a"}}))
	}
	round := store.KeyRound{Each: 4, Limit: 2}
	taken, _, err := e.TakeByKey(t.Context(), "q", round, 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	fails := errors.New("it fails")
	require.ErrorIs(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		var purges []store.Edit
		for _, l := range taken {
			purges = append(purges, store.Edit{Do: store.Purge, Queue: "q", Entry: store.Entry{Position: l.Position, Fence: l.Lease.Fence, Message: l.Message}})
		}
		done, err := tx.Edit(ctx, purges...)
		require.NoError(t, err)
		require.Equal(t, []bool{true, true}, done)
		return fails
	}), fails)
	taken, _, err = e.TakeByKey(t.Context(), "q", round, 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, taken)
}
