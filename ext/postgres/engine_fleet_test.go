//go:build unix

package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/fleettest"
)

func openForFleet(ctx context.Context, url string) (store.Keeper, error) {
	return postgres.Open(ctx, url)
}

// Law B5.
func TestFleet_ProcessesShareALimit(t *testing.T) {
	t.Parallel()
	fleettest.Run(t, schemas(t)(t))
}

// Law B5, while processes are killed and paused.
func TestFleet_KillsAndPauses(t *testing.T) {
	t.Parallel()
	fleettest.RunFaults(t, schemas(t)(t))
}

// Law D3, when a backend recovers.
func TestRecovery_MakesMessagesDue(t *testing.T) {
	t.Parallel()
	engine, err := postgres.Open(t.Context(), schemas(t)(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	fleettest.Recover(t, engine)
}
