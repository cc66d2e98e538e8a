package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// BenchmarkStore is durable: each commit waits for the disk.
func BenchmarkStore(b *testing.B) {
	storebench.Run(b, func(b *testing.B) store.Store {
		db, err := sqlite.OpenDB(b.Context(), filepath.Join(b.TempDir(), "queues.db"))
		require.NoError(b, err)
		b.Cleanup(func() { db.Close() })
		require.NoError(b, sqlite.New(db).Migrate(b.Context()))
		return sqlite.New(db)
	})
}
