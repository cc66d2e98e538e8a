//go:build unix

package pgstore_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgstore"
	"github.com/weirflow/weir/internal/workerkill"
)

// Laws D1 to D4: workers and the server are killed.
func TestKilledWorkers(t *testing.T) {
	server := pgtest.Start(t)
	require.NoError(t, pgstore.Migrate(t.Context(), connect(t, server.URL())))
	workerkill.Run(t, workerkill.Config{
		Place: server.URL(), Open: openForWorkers,
		KillServer: func() {
			server.Kill()
			server.Start()
		},
	})
}

func openForWorkers(ctx context.Context, url string) (workerkill.Engine, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	return workerkill.Queues{Inspector: closingPool{pgstore.New(pool), pool}}, nil
}

// closingPool closes the pool with the store.
type closingPool struct {
	*pgstore.Store
	pool *pgxpool.Pool
}

func (c closingPool) Close() error {
	defer c.pool.Close()
	return c.Store.Close()
}
