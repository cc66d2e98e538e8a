package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/fleettest"
)

func openForFleet(ctx context.Context, path string) (store.Keeper, error) {
	return sqlite.Open(ctx, path)
}

// Law B5.
func TestFleet_ProcessesShareALimit(t *testing.T) {
	t.Parallel()
	fleettest.Run(t, filepath.Join(t.TempDir(), "queues.db"))
}

// Law D3, when a backend recovers.
func TestRecovery_MakesMessagesDue(t *testing.T) {
	t.Parallel()
	engine, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	fleettest.Recover(t, engine)
}
