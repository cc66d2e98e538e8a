//go:build unix

package pgcheckpoint_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgcheckpoint"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with a pipeline and its checkpoint (law W4).
func TestFormatOfTables(t *testing.T) {
	server := pgtest.Start(t)
	server.Exec("CREATE SCHEMA new", "CREATE SCHEMA old")
	pool := connect(t, server.URL()+"&search_path=new", nil)
	require.NoError(t, (&pgcheckpoint.Stores{Pool: pool}).Migrate(t.Context()))
	want := &checkpoint.Snapshot{ID: 7, Kind: checkpoint.Drain, Time: golden.At, States: map[string]participant.State{"in": {{1, 2}}}}
	store, err := (&pgcheckpoint.Stores{Pool: pool}).Open(t.Context(), "copy", 3)
	require.NoError(t, err)
	require.NoError(t, store.Save(t.Context(), want))
	require.NoError(t, store.Close())
	tables := golden.Database{DB: stdlib.OpenDBFromPool(pool), Files: os.DirFS("migrations"), Tables: []string{"weir_pipelines", "weir_checkpoints"}, Postgr: true}
	defer tables.DB.Close()
	script := golden.Written(t, "checkpoints-1.sql", tables.Script(t))

	oldPool := connect(t, server.URL()+"&search_path=old", nil)
	db := stdlib.OpenDBFromPool(oldPool)
	defer db.Close()
	golden.Run(t.Context(), t, db, script)
	require.NoError(t, (&pgcheckpoint.Stores{Pool: oldPool}).Migrate(t.Context()))
	store, err = (&pgcheckpoint.Stores{Pool: oldPool}).Open(t.Context(), "copy", 4)
	require.NoError(t, err)
	got, err := store.Load(t.Context(), 7)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = (&pgcheckpoint.Stores{Pool: oldPool}).Open(t.Context(), "copy", 3)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
}
