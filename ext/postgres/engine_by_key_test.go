//go:build unix

package postgres_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
)

// Law D4: the database refuses messages while a limit by key is set. The other messages of
// their keys are taken, within the limit.
func TestEngineTakeByKey_RefusedWithALimit(t *testing.T) {
	var log bytes.Buffer
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool, postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	defer s.Close()
	for i := range 4 {
		for _, key := range []string{"a", "b", "c"} {
			require.NoError(t, s.Put(t.Context(), "q", keyed(key+strconv.Itoa(i), key)))
		}
	}
	_, err := pool.Exec(t.Context(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.meta->>'id' = 'b0' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON weir_messages FOR EACH ROW EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	var got []string
	for range 3 {
		taken, _, err := s.TakeByKey(t.Context(), "q", store.KeyRound{Each: 2, Limit: 2}, 10, time.Minute)
		require.NoError(t, err)
		for _, m := range taken {
			got = append(got, m.Meta.ID)
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{"a0", "a1", "b1", "b2", "c0", "c1"}, got)
	require.Equal(t, 1, strings.Count(log.String(), "refuses to lease a message"), log.String())
}

// A take from a layer waits for the lock of a key, which another take from the queue has.
// Then it counts the leases that the other take has granted, even if the default of the
// database is one snapshot for all statements of a transaction.
func TestEngineTakeByKey_CountsLeasesAfterTheLock(t *testing.T) {
	for _, options := range []string{"", "&default_transaction_isolation=repeatable%20read"} {
		t.Run(options, func(t *testing.T) {
			url := schemas(t)(t)
			pool := connect(t, url)
			require.NoError(t, postgres.New(pool).Migrate(t.Context()))
			s := postgres.New(connect(t, url+options))
			defer s.Close()
			require.NoError(t, s.Put(t.Context(), "q", keyed("1", "a"), keyed("2", "a")))
			require.NoError(t, s.Put(t.Context(), "q-retry-1", keyed("3", "a"), keyed("4", "a")))

			other, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer other.Rollback(t.Context()) //nolint:errcheck // after Commit, or the test has failed
			_, err = other.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", postgres.LockOfKey("q", "a"))
			require.NoError(t, err)
			taken := make(chan int, 1)
			go func() { // ends after the commit
				ms, _, err := s.TakeByKey(context.WithoutCancel(t.Context()), "q-retry-1", store.KeyRound{Each: 2, Limit: 3}, 10, time.Hour)
				if err != nil {
					t.Error(err)
				}
				taken <- len(ms)
			}()
			require.Eventually(t, func() bool {
				var waits bool
				err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").Scan(&waits)
				return err == nil && waits
			}, time.Minute, time.Millisecond, "the take does not wait for the lock of its key")
			_, err = other.Exec(t.Context(), `UPDATE weir_messages SET fence = fence + 1, limited = fence + 1, leased = clock_timestamp() + interval '1 hour',
				at = clock_timestamp() + interval '1 hour' WHERE queue = 'q'`)
			require.NoError(t, err)
			require.NoError(t, other.Commit(t.Context()))
			require.Equal(t, 1, <-taken)
		})
	}
}

// A take locks few keys, since a server has memory for few locks. The next take continues
// the round.
func TestEngineTakeByKey_LocksFewKeys(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	var ms []store.Message
	for i := range 60 {
		key := strconv.Itoa(100 + i)
		ms = append(ms, keyed(key, key))
	}
	require.NoError(t, s.Put(t.Context(), "q", ms...))
	taken, next, err := s.TakeByKey(t.Context(), "q", store.KeyRound{Each: 1, Limit: 1}, 1000, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 50)
	taken, next, err = s.TakeByKey(t.Context(), "q", store.KeyRound{After: next, Each: 1, Limit: 1}, 1000, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 10)
	require.Empty(t, next)
}
