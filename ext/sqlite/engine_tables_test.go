package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
)

func TestEngine_WithoutTables(t *testing.T) {
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	queues := sqlite.New(db)
	defer func() { require.NoError(t, queues.Close()) }()
	storebench.WithoutTables(t, queues, "sqlite.Engine.Migrate")
}
