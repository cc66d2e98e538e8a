//go:build unix

package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

// The statements of TakeInOrder find the head and the first message of a key by an index,
// and read no other message of the key.
func TestEngineTakeInOrder_UsesAnIndex(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT 'q', now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', CASE WHEN n % 20 = 0 THEN n::text ELSE 'flood' END)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	for round := range 8 {
		if round == 4 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		mock.Add(time.Minute) // it looks for keys without a head
		plans()
		taken, err := s.TakeInOrder(t.Context(), "q", 100, time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, taken)
		leases := make([]store.Lease, len(taken))
		for i := range taken {
			leases[i] = taken[i].Lease
		}
		next := taken[0].Message
		next.Meta.Visit++
		require.NoError(t, s.Replace(t.Context(), store.Replacement{Lease: leases[0], Message: next}))
		require.NoError(t, s.Done(t.Context(), leases[1:]...))
		_, err = s.Purge(t.Context(), "q", store.Filter{IDs: []string{taken[0].Meta.ID}})
		require.NoError(t, err)
		plan := plans()
		require.Contains(t, plan, "weir_messages_head", round)
		require.Contains(t, plan, "weir_messages_order", round)
		require.NotContains(t, plan, "Seq Scan on weir_messages", round)
	}
}

// A program of an earlier version removes a message, and does not free the messages that
// are parked behind it.
func TestEngineTakeInOrder_HeadRemovedByAnEarlierVersion(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	for _, key := range []string{"a", "b"} {
		for _, id := range []string{"1", "2", "3"} {
			require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: key + id, Key: key}}))
		}
	}
	takeOne := func() store.Leased {
		t.Helper()
		taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		return taken[0]
	}
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	_, err = pool.Exec(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'")
	require.NoError(t, err)
	none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none, "it has looked a short time ago")
	mock.Add(10 * time.Second)
	got := takeOne()
	require.Equal(t, "a2", got.Meta.ID)
	require.NoError(t, s.Done(t.Context(), got.Lease))
	require.Equal(t, "a3", takeOne().Meta.ID)
}

// A message that was put before the head of its key, and committed after the head was
// taken, waits for the head: one message of a key is in flight at a time.
func TestEngineTakeInOrder_EarlierPositionIsCommittedLate(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	of := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id, Key: "a"}} }
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was committed
	require.NoError(t, postgres.Stage(t.Context(), s, tx, "q", of("late")))
	require.NoError(t, s.Put(t.Context(), "q", of("head"), of("next")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "head", taken[0].Meta.ID)
	require.NoError(t, tx.Commit(t.Context()))
	for range 2 {
		none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Empty(t, none)
	}
	for _, want := range []string{"late", "next"} {
		require.NoError(t, s.Done(t.Context(), taken[0].Lease))
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, want, taken[0].Meta.ID)
	}
}

// While a transaction removes the head of a key, no message is parked behind it, since
// the transaction could not see and free that message.
func TestEngineTakeInOrder_HeadIsBeingRemoved(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	of := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id, Key: "a"}} }
	require.NoError(t, s.Put(t.Context(), "q", of("head")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was committed
	_, err = tx.Exec(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'head'")
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "q", of("next")))
	none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, tx.Commit(t.Context()))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "next", taken[0].Meta.ID)
}

func TestEngineTakeInOrder_KeysBehindAFlood(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	plans()
	storebench.KeysBehindAFlood(t, s, func() (n int) {
		plan := plans()
		require.NotContains(t, plan, "Seq Scan on weir_messages")
		require.NotRegexp(t, `weir_messages_at on [^\n]*\n[^\n]*\n *Filter`, plan, "it reads all messages that are due")
		n = parkedIn(t, pool)
		_, err := pool.Exec(t.Context(), "ANALYZE weir_messages") // as autovacuum does
		require.NoError(t, err)
		plans()
		return n
	}, func() { postgres.SetNow(s, "(clock_timestamp() + interval '2 s')") })
}

// parkedIn returns how many messages of a database are parked.
func parkedIn(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM weir_messages WHERE at = '9999-12-30 00:00:00+00'").Scan(&n))
	return n
}

// A call of TakeInOrder begins after the messages that were parked before. A message whose
// transaction is committed late comes before them, and is found all the same: at once if
// no other message is due, and within a second otherwise.
func TestEngineTakeInOrder_CommittedBeforeParkedMessages(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	staged := func(id string) pgx.Tx {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, postgres.Stage(t.Context(), s, tx, "q", keyed(id, "")))
		return tx
	}
	take := func() (ids []string) {
		taken, err := s.TakeInOrder(t.Context(), "q", 2, time.Hour)
		require.NoError(t, err)
		for i := range taken {
			ids = append(ids, taken[i].Meta.ID)
		}
		return ids
	}
	first, second := staged("first"), staged("second")
	defer first.Rollback(t.Context())  //nolint:errcheck // it was committed
	defer second.Rollback(t.Context()) //nolint:errcheck // it was committed
	require.NoError(t, s.Put(t.Context(), "q", keyed("head", "a"), keyed("a1", "a"), keyed("a2", "a")))
	require.Equal(t, []string{"head"}, take())
	require.Empty(t, take(), "the others of the key are parked")
	require.NoError(t, first.Commit(t.Context()))
	require.Equal(t, []string{"first"}, take())
	require.Empty(t, take(), "it looks for others that come before the parked messages")
	require.NoError(t, second.Commit(t.Context()))
	require.NoError(t, s.Put(t.Context(), "q", keyed("b1", "b"), keyed("c1", "c"), keyed("d1", "d"), keyed("e1", "e")))
	require.Equal(t, []string{"b1", "c1"}, take())
	mock.Add(time.Second)
	require.Equal(t, []string{"second", "d1"}, take())
}

// Many messages that come before the parked ones, such as after a hold, are taken before
// others, although each call takes one.
func TestEngineTakeInOrder_ManyBeforeParkedMessages(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	put := func(ms ...store.Message) { require.NoError(t, s.Put(t.Context(), "q", ms...)) }
	take := func() (ids []string) {
		taken, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
		require.NoError(t, err)
		for i := range taken {
			ids = append(ids, taken[i].Meta.ID)
		}
		return ids
	}
	hold := func(do store.Action) {
		list, err := s.List(t.Context(), "q", store.Filter{IDs: []string{"1", "2", "3"}}, store.Page{Max: 10})
		require.NoError(t, err)
		require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			for _, e := range list {
				_, err := tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: e})
				require.NoError(t, err)
			}
			return nil
		}))
	}
	put(keyed("1", ""), keyed("2", ""), keyed("3", ""))
	hold(store.Hold)
	put(keyed("head", "a"), keyed("a1", "a"), keyed("a2", "a"))
	require.Equal(t, []string{"head"}, take())
	require.Empty(t, take(), "the others of the key are parked")
	hold(store.Release)
	put(keyed("4", ""), keyed("5", ""), keyed("6", ""), keyed("7", ""))
	require.Equal(t, []string{"4"}, take())
	mock.Add(time.Second)
	for _, want := range []string{"1", "2", "3", "5"} {
		require.Equal(t, []string{want}, take())
	}
}
