//go:build unix

package postgres_test

import (
	"bytes"
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
