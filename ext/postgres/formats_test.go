//go:build unix

package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with a waiting, a leased and a held message, a dead letter, a lock and a
// record, and the head of a key with a message that is parked behind it (law W4).
func TestFormatOfTables(t *testing.T) {
	newSchema := schemas(t)
	pool := connect(t, newSchema(t))
	const now = "timestamptz '2026-01-02 03:04:05.678Z'"
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	written := postgres.New(pool)
	defer func() { require.NoError(t, written.Close()) }()
	postgres.SetNow(written, now)
	golden.Fill(t, written)
	tables := golden.Database{DB: stdlib.OpenDBFromPool(pool), Files: postgres.New(pool).Migrations(), Tables: []string{"weir_messages", "weir_locks", "weir_records"}, Postgr: true}
	defer tables.DB.Close()
	check := func(name string, script []byte) *postgres.Engine {
		oldPool := connect(t, newSchema(t))
		olddb := stdlib.OpenDBFromPool(oldPool)
		golden.Run(t.Context(), t, olddb, script)
		require.NoError(t, olddb.Close())
		require.NoError(t, postgres.New(oldPool).Migrate(t.Context()))
		old := postgres.New(oldPool)
		t.Cleanup(func() { require.NoError(t, old.Close()) })
		postgres.SetNow(old, now)
		require.Equal(t, golden.Contents(t, written), golden.Contents(t, old), name)
		return old
	}
	check("engine-6.sql", golden.Read(t, "engine-6.sql"))
	check("engine-7.sql", golden.Read(t, "engine-7.sql"))
	golden.FillInOrder(t, written)
	check("engine-8.sql", golden.Read(t, "engine-8.sql"))
	golden.FillByKey(t, written, written)
	old := check("engine-9.sql", golden.Written(t, "engine-9.sql", tables.Script(t)))
	_, err := old.Purge(t.Context(), "in order", store.Filter{IDs: []string{"head"}})
	require.NoError(t, err)
	taken, err := old.TakeInOrder(t.Context(), "in order", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "parked", taken[0].Meta.ID)
	taken, _, err = old.TakeByKey(t.Context(), "by key", store.KeyRound{Each: 1, Limit: 1}, 10, time.Minute)
	require.NoError(t, err)
	require.Empty(t, taken, "messages beside a lease that counts")
	taken, _, err = old.TakeByKey(t.Context(), "by key", store.KeyRound{Each: 1, Limit: 2}, 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
}
