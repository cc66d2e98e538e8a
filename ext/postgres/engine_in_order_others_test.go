//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// keyed returns a message with a key.
func keyed(id, key string) store.Message {
	return store.Message{Meta: message.Meta{ID: id, Key: key}, Payload: []byte(strconv.Quote(id))}
}

// A worker of an earlier version settles the head, and a message of the key is taken before
// the next sweep: the parked message becomes the head, and is due.
func TestEngineTakeInOrder_ParkedMessageBecomesHeadBeforeTheSweep(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	require.NoError(t, s.Put(t.Context(), "q", keyed("a1", "a"), keyed("a2", "a")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	_, err = pool.Exec(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'") // an older worker
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "q", keyed("a3", "a")))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	for i := 0; i < 20 && len(taken) == 0; i++ {
		mock.Add(10 * time.Second)
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
	}
	var at time.Time
	var head bool
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT at, head FROM weir_messages WHERE meta->>'id' = 'a2'").Scan(&at, &head))
	require.Len(t, taken, 1, "a2 and a3 are never delivered: a2 has at=%v head=%v", at, head)
}

// The default of the database is REPEATABLE READ. A job purges the head while a message is
// parked behind it, and then a message of the key is put: the parked one is delivered.
func TestEngineTakeInOrder_RepeatableReadPurgeOfTheHead(t *testing.T) {
	config, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	require.NoError(t, s.Put(t.Context(), "q", keyed("a1", "a")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	entries, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	tries := 0
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		tries++
		_, err := tx.Records(ctx, "job", "", 1) // as a job does
		if err != nil {
			return err
		}
		if tries == 1 {
			require.NoError(t, s.Put(ctx, "q", keyed("a2", "a")))
			none, err := s.TakeInOrder(ctx, "q", 10, time.Hour) // parks a2 behind a1
			require.NoError(t, err)
			require.Empty(t, none)
		}
		_, err = tx.Edit(ctx, store.Edit{Do: store.Purge, Queue: "q", Entry: entries[0]})
		return err
	}))
	require.NoError(t, s.Put(t.Context(), "q", keyed("a3", "a")))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	for i := 0; i < 20 && len(taken) == 0; i++ {
		mock.Add(10 * time.Second)
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
	}
	require.Len(t, taken, 1, "a2 and a3 are never delivered")
}

// The head of a key is locked by another call. A message of another key that is due behind
// a message of that key is taken.
func TestEngineTakeInOrder_OtherKeyBehindALockedHead(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("a1", "a"), keyed("a2", "a"), keyed("other", "b")))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test may have ended it
	_, err = tx.Exec(t.Context(), "SELECT FROM weir_messages WHERE meta->>'id' = 'a1' FOR UPDATE SKIP LOCKED")
	require.NoError(t, err)
	taken, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1, "other is due, and no other call takes or settles it")
}

// While another call locks the head of a flood, a call looks at some messages of the
// flood, and takes others behind them.
func TestEngineTakeInOrder_FloodBehindALockedHead(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	flood := make([]store.Message, 2000)
	for i := range flood {
		flood[i] = keyed("flood/"+strconv.Itoa(i), "flood")
	}
	require.NoError(t, s.Put(t.Context(), "q", flood...))
	require.NoError(t, s.Put(t.Context(), "q", keyed("other", "b"), keyed("without a key", "")))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test has ended
	_, err = tx.Exec(t.Context(), "SELECT FROM weir_messages WHERE meta->>'id' = 'flood/0' FOR UPDATE")
	require.NoError(t, err)
	postgres.SetNow(s, "(clock_timestamp() + interval '2 s')")
	for _, want := range []string{"other", "without a key"} {
		taken, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, want, taken[0].Meta.ID)
	}
	statements := 0
	postgres.SetStep(s, func() { statements++ })
	none, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Less(t, statements, 60, "a call looks at all messages of the flood")
}

// Law D4: the database refuses to change the first message of a key. The messages of other
// keys are taken.
func TestEngineTakeInOrder_RefusedFirstOfALargeKey(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("bad", "a")))
	for i := range 100 {
		require.NoError(t, s.Put(t.Context(), "q", keyed(fmt.Sprint("a", i), "a")))
	}
	_, err := pool.Exec(t.Context(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.meta->>'id' = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON weir_messages FOR EACH ROW EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "q", keyed("other", "b")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
}

// Law D4: the database refuses to change the message behind the head. The head is removed
// when it is done.
func TestEngineTakeInOrder_DoneOfTheMessageBeforeARefusedOne(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("good", "a"), keyed("bad", "a"), keyed("other", "b"), keyed("last", "b")))
	_, err := pool.Exec(t.Context(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.meta->>'id' = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON weir_messages FOR EACH ROW EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	require.NoError(t, s.Done(t.Context(), taken[0].Lease, taken[1].Lease))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "last", taken[0].Meta.ID)
}

// A worker sets a message aside that it cannot remove: the next message of the key is
// delivered.
func TestEngineTakeInOrder_SetAsideMessage(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("bad", "a"), keyed("next", "a"), keyed("last", "a")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.NoError(t, s.Release(t.Context(), storearg.ForGood, taken[0].Lease))
	for _, id := range []string{"next", "last"} {
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, id, taken[0].Meta.ID)
		require.NoError(t, s.Done(t.Context(), taken[0].Lease))
	}
}

// betweenFloods returns an engine whose queue has two floods of 1,100 messages, two seconds
// apart, and between them the messages without a key that put puts.
func betweenFloods(t *testing.T, put func(pool *pgxpool.Pool, s *postgres.Engine)) (s *postgres.Engine, mock *clock.Mock) {
	t.Helper()
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s = postgres.New(pool)
	mock = clock.NewMock()
	postgres.SetClock(s, mock)
	flood := func(name string) {
		ms := make([]store.Message, 1100)
		for i := range ms {
			ms[i] = keyed(name+"/"+strconv.Itoa(i), "flood")
		}
		require.NoError(t, s.Put(t.Context(), "q", ms...))
	}
	postgres.SetNow(s, "timestamptz '2026-01-01 00:00:00'")
	flood("first")
	postgres.SetNow(s, "timestamptz '2026-01-01 00:00:02'")
	put(pool, s)
	flood("second")
	require.Equal(t, "first/0", takeID(t, s))
	return s, mock
}

// takeID takes a message, and returns its id.
func takeID(t *testing.T, s *postgres.Engine) string {
	t.Helper()
	taken, err := s.TakeInOrder(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	return taken[0].Meta.ID
}

// A message without a key is committed late, and a search has already read messages that
// are due at the same time. The next step of the search finds it.
func TestEngineTakeInOrder_CommittedBehindASearch(t *testing.T) {
	var late pgx.Tx
	s, mock := betweenFloods(t, func(pool *pgxpool.Pool, s *postgres.Engine) {
		var err error
		late, err = pool.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, postgres.Stage(t.Context(), s, late, "q", keyed("late", "")))
		require.NoError(t, s.Put(t.Context(), "q", keyed("other", "")))
	})
	defer s.Close()
	defer late.Rollback(t.Context()) //nolint:errcheck // it was committed
	require.Equal(t, "other", takeID(t, s))
	require.NoError(t, late.Commit(t.Context()))
	mock.Add(time.Minute) // a search that ends now begins again after ten minutes
	require.Equal(t, "late", takeID(t, s))
}

// Another call locks a message without a key that a search has found, and leaves it alone.
// The next step of the search finds it again.
func TestEngineTakeInOrder_LockedBehindAFlood(t *testing.T) {
	var other pgx.Tx
	s, mock := betweenFloods(t, func(pool *pgxpool.Pool, s *postgres.Engine) {
		require.NoError(t, s.Put(t.Context(), "q", keyed("locked", ""), keyed("free", "")))
		var err error
		other, err = pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = other.Exec(t.Context(), "SELECT FROM weir_messages WHERE meta->>'id' = 'locked' FOR UPDATE")
		require.NoError(t, err)
	})
	defer s.Close()
	defer other.Rollback(t.Context()) //nolint:errcheck // it was rolled back
	postgres.SetNow(s, "timestamptz '2026-01-01 00:00:04'")
	taken, err := s.TakeInOrder(t.Context(), "q", 2, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "free", taken[0].Meta.ID)
	require.NoError(t, other.Rollback(t.Context()))
	mock.Add(time.Minute) // a search that ends now begins again after ten minutes
	require.Equal(t, "locked", takeID(t, s))
}
