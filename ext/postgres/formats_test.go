//go:build unix

package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with a waiting, a leased and a held message, a dead letter, a lock and a
// record (law W4).
func TestFormatOfTables(t *testing.T) {
	newSchema := schemas(t)
	pool := connect(t, newSchema(t))
	const now = "timestamptz '2026-01-02 03:04:05.678Z'"
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	written := postgres.New(pool)
	postgres.SetNow(written, now)
	golden.Fill(t, written)
	tables := golden.Database{DB: stdlib.OpenDBFromPool(pool), Files: postgres.New(pool).Migrations(), Tables: []string{"weir_messages", "weir_locks", "weir_records"}, Postgr: true}
	defer tables.DB.Close()
	for name, script := range map[string][]byte{
		"engine-7.sql": golden.Written(t, "engine-7.sql", tables.Script(t)),
		"engine-6.sql": golden.Read(t, "engine-6.sql"),
	} {
		oldPool := connect(t, newSchema(t))
		olddb := stdlib.OpenDBFromPool(oldPool)
		golden.Run(t.Context(), t, olddb, script)
		require.NoError(t, olddb.Close())
		require.NoError(t, postgres.New(oldPool).Migrate(t.Context()))
		old := postgres.New(oldPool)
		postgres.SetNow(old, now)
		require.Equal(t, golden.Contents(t, written), golden.Contents(t, old), name)
	}
}
