package sqliterecords_test

import (
	"path/filepath"
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with an answer, and a client whose requests below a mark are stale
// (law W4).
func TestFormatOfTables(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	db := open(t, filepath.Join(t.TempDir(), "new.db"))
	records := sqliterecords.NewBy(db, mock)
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.Client{1, 15: 255}, Sequence: 17, Attempt: 1, Step: "refund"}, Scope: "ann", Fingerprint: [32]byte{1, 31: 255}}
	tx, err := db.Writer().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, records.Put(t.Context(), tx, req, []byte("done")))
	require.NoError(t, tx.Commit())
	require.NoError(t, records.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "ann", ID: exactlyonce.ID{Client: req.Client, First: 16}}}))
	tables := golden.Database{DB: db.Writer(), Files: records.Migrations(), Tables: []string{"weir_clients", "weir_answers"}}
	script := golden.Written(t, "answers-2.sql", tables.Script(t))

	old, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "old.db"))
	require.NoError(t, err)
	defer old.Close()
	golden.Run(t.Context(), t, old.Writer(), script)
	require.NoError(t, sqliterecords.New(old).Migrate(t.Context()))
	records = sqliterecords.New(old)
	state, answer, err := exactlyoncetest.StateOf(records.Find(t.Context(), req))
	require.NoError(t, err)
	require.Equal(t, "completed", state)
	require.Equal(t, "done", string(answer))
	req.Sequence = 15
	state, _, err = exactlyoncetest.StateOf(records.Find(t.Context(), req))
	require.NoError(t, err)
	require.Equal(t, "stale", state)
}
