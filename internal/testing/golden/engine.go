package golden

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
)

// FillInOrder puts two messages of a key into a queue, and takes the first: it is the
// head of the key, and the second one is parked.
func FillInOrder(tb testing.TB, s store.InOrder) {
	tb.Helper()
	for _, id := range []string{"head", "parked"} {
		m := Message()
		m.Meta.ID, m.Cause = id, ""
		require.NoError(tb, s.Put(tb.Context(), "in order", m))
	}
	taken, err := s.TakeInOrder(tb.Context(), "in order", 10, time.Minute)
	require.NoError(tb, err)
	require.Len(tb, taken, 1)
}

// FillByKey puts two messages of a key, and takes one within a limit of a lease for each
// key.
func FillByKey(tb testing.TB, s store.Store, byKey store.ByKey) {
	tb.Helper()
	for _, id := range []string{"leased", "waits"} {
		m := Message()
		m.Meta.ID, m.Cause = id, ""
		require.NoError(tb, s.Put(tb.Context(), "by key", m))
	}
	taken, _, err := byKey.TakeByKey(tb.Context(), "by key", store.KeyRound{Each: 1, Limit: 1}, 10, time.Minute)
	require.NoError(tb, err)
	require.Len(tb, taken, 1)
}

// Fill puts an example of each kind into an engine: a waiting message, a message leased
// for the second time, a held message, a dead letter, a lock, and a record.
func Fill(tb testing.TB, s store.Keeper) {
	tb.Helper()
	queues := s.(store.Store) //nolint:forcetypeassert // each Keeper of weir is also a Store
	ctx := tb.Context()
	named := func(id string) (m store.Message) {
		m = Message()
		m.Meta.ID, m.Cause = id, ""
		return m
	}
	waits := named("waits")
	waits.Delay = time.Hour
	require.NoError(tb, queues.Put(ctx, "orders", named("leased")))
	first, err := queues.Take(ctx, "orders", 1, time.Minute)
	require.NoError(tb, err)
	require.NoError(tb, queues.Release(ctx, 0, first[0].Lease))
	_, err = queues.Take(ctx, "orders", 1, time.Minute)
	require.NoError(tb, err)
	require.NoError(tb, queues.Put(ctx, "orders", waits, named("held")))
	require.NoError(tb, queues.Put(ctx, "orders-dead", Message()))
	_, err = s.Locks().Acquire(ctx, "relay", "host 1", time.Minute)
	require.NoError(tb, err)
	held, err := s.List(ctx, "orders", store.Filter{IDs: []string{"held"}}, store.Page{Max: 10})
	require.NoError(tb, err)
	require.NoError(tb, s.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		if _, err := tx.Edit(ctx, store.Edit{Do: store.Hold, Queue: "orders", Entry: held[0]}); err != nil {
			return err
		}
		return tx.Write(ctx, store.Record{Kind: "job", Name: "000000000001", Value: "{}"})
	}))
}

// Engine is the content of an engine.
type Engine struct {
	Orders, Dead []store.Entry
	Held         []lock.Holding
	Records      []store.Record
}

// Contents reads an engine filled by Fill.
func Contents(tb testing.TB, s store.Keeper) (e Engine) {
	tb.Helper()
	var err error
	e.Orders, err = s.List(tb.Context(), "orders", store.Filter{}, store.Page{Max: 10})
	require.NoError(tb, err)
	require.Len(tb, e.Orders, 3)
	e.Dead, err = s.List(tb.Context(), "orders-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(tb, err)
	require.Len(tb, e.Dead, 1)
	e.Held, err = s.Locks().Held(tb.Context(), "")
	require.NoError(tb, err)
	require.Len(tb, e.Held, 1)
	e.Records, err = s.Records(tb.Context(), "job", "", 10)
	require.NoError(tb, err)
	require.Len(tb, e.Records, 1)
	return e
}
