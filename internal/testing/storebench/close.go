package storebench

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// CloseBesideATransaction checks that Close does not deadlock with a transaction of the
// caller that waits for a call or keeps one waiting. stage puts a message with an id in
// such a transaction. It returns the result of Close.
func CloseBesideATransaction(t *testing.T, s store.Keeper, stage func(ctx context.Context, id string) error) error {
	t.Helper()
	closed := make(chan error, 1)
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, _ store.Tx) error {
		go func() { closed <- s.Close() }() // waits for Update
		refused := make(chan error, 1)
		go func() {
			var err error
			for i := 0; err == nil; i++ {
				err = stage(ctx, strconv.Itoa(i))
			}
			refused <- err
		}()
		select {
		case err := <-refused:
			require.ErrorIs(t, err, store.ErrClosed)
		case <-time.After(10 * time.Second):
			t.Error("a call hangs while Close waits")
		}
		return nil
	}))
	return <-closed
}
