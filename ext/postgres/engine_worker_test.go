//go:build unix

package postgres_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/workerkill"
)

// Laws D1 to D4: workers and the server are killed.
func TestKilledWorkers(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	require.NoError(t, postgres.New(connect(t, server.URL())).Migrate(t.Context()))
	workerkill.Run(t, workerkill.Config{
		DSN: server.URL(), Open: openForWorkers,
		KillServer: func() {
			server.Kill()
			server.Start()
		},
	})
}

// Eight workers are killed while they keep the order of 200 keys, with WEIR_LONG.
func TestKilledWorkersInOrder(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	require.NoError(t, postgres.New(connect(t, server.URL())).Migrate(t.Context()))
	workerkill.RunInOrder(t, workerkill.Config{DSN: server.URL(), Open: openForWorkers})
}

// Workers are killed while they share the limit of three calls for each of three keys.
func TestKilledWorkersByKey(t *testing.T) {
	server := pgtest.Start(t)
	require.NoError(t, postgres.New(connect(t, server.URL())).Migrate(t.Context()))
	workerkill.RunByKey(t, workerkill.Config{DSN: server.URL(), Open: openForWorkers})
}

// Law W4: workers of two versions at once, as in a rollout. The older one is the first
// with these tables.
func TestKilledWorkersOfTwoVersions(t *testing.T) {
	older := workerkill.Older(t, "8c775bb644e02a59b305c1a239db22b38a8d062d", "ext/postgres")
	server := pgtest.Start(t)
	require.NoError(t, postgres.New(connect(t, server.URL())).Migrate(t.Context()))
	workerkill.Run(t, workerkill.Config{DSN: server.URL(), Open: openForWorkers, Programs: []string{older, ""}, MayDouble: true})
}

func openForWorkers(ctx context.Context, url string) (workerkill.Engine, error) {
	s, err := postgres.Open(ctx, url, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return workerkill.Queues{Inspector: s}, nil
}
