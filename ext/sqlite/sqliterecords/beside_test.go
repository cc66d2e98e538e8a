package sqliterecords_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

// The answers and the queues are in one database, whichever came first: once both had a
// table weir_records.
func TestRecords_BesideQueues(t *testing.T) {
	for name, queuesFirst := range map[string]bool{"queues first": true, "answers first": false} {
		t.Run(name, func(t *testing.T) {
			db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "both.db"))
			require.NoError(t, err)
			defer db.Close()
			if queuesFirst {
				require.NoError(t, sqlite.New(db).Migrate(t.Context()))
			}
			require.NoError(t, sqliterecords.New(db).Migrate(t.Context()))
			require.NoError(t, sqlite.New(db).Migrate(t.Context()))

			state, _, err := exactlyoncetest.StateOf(sqliterecords.New(db).Find(t.Context(), exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.Client{1}, Sequence: 1, Attempt: 1}}))
			require.NoError(t, err)
			require.Equal(t, "new", state)
			queues := sqlite.New(db)
			_, err = queues.Records(t.Context(), "job", "", 1)
			require.NoError(t, err)
		})
	}
}
