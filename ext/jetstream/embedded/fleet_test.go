package embedded_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/internal/testing/fleettest"
)

func openForFleet(ctx context.Context, url string) (store.Keeper, error) {
	js, err := clustertest.Connect(url)
	if err != nil {
		return nil, err
	}
	return openEngine(ctx, js, "queues")
}

// Law B5.
func TestFleet_ProcessesShareALimit(t *testing.T) {
	t.Parallel()
	fleettest.Run(t, startForFleet(t))
}

// Law B5, while processes are killed and paused.
func TestFleet_KillsAndPauses(t *testing.T) {
	t.Parallel()
	fleettest.RunFaults(t, startForFleet(t))
}

// Law D3, when a backend recovers.
func TestRecovery_MakesMessagesDue(t *testing.T) {
	t.Parallel()
	_, js := startCluster(t, clustertest.Config{Servers: 1})
	require.NoError(t, clustertest.CreateStream(t.Context(), js, weirjs.StreamConfig("queues")))
	engine, err := openEngine(t.Context(), js, "queues")
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	fleettest.Recover(t, engine)
}

// startForFleet starts a server with a stream, and returns its address.
func startForFleet(t *testing.T) string {
	t.Helper()
	all, js := startCluster(t, clustertest.Config{Servers: 1})
	require.NoError(t, clustertest.CreateStream(t.Context(), js, weirjs.StreamConfig("queues")))
	return all.URL()
}
