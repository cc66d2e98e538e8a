package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with a waiting, a leased and a held message, a dead letter, a lock and a
// record, and the head of a key with a message that is parked behind it (law W4).
func TestFormatOfTables(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	open := func(name string) (*sqlite.DB, *sqlite.Engine) {
		db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		s := sqlite.New(db, sqlite.WithClock(mock))
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return db, s
	}
	db, written := open("new.db")
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	golden.Fill(t, written)
	tables := golden.Database{DB: db.Writer(), Files: sqlite.New(db).Migrations(), Tables: []string{"weir_messages", "weir_messages_clock", "weir_locks", "weir_records"}}
	check := func(name string, script []byte) *sqlite.Engine {
		olddb, old := open(name)
		golden.Run(t.Context(), t, olddb.Writer(), script)
		require.NoError(t, sqlite.New(olddb).Migrate(t.Context()))
		require.Equal(t, golden.Contents(t, written), golden.Contents(t, old), name)
		return old
	}
	check("6.db", golden.Read(t, "engine-6.sql"))
	check("7.db", golden.Read(t, "engine-7.sql"))
	golden.FillInOrder(t, written)
	check("8.db", golden.Read(t, "engine-8.sql"))
	golden.FillByKey(t, written, written)
	old := check("9.db", golden.Written(t, "engine-9.sql", tables.Script(t)))
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
