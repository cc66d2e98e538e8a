//go:build unix

package pgcheckpoint_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgcheckpoint"
	"github.com/weirflow/weir/internal/testing/pipelinekill"
	"github.com/weirflow/weir/internal/testing/rowoutput"
)

// rowsOf inserts the rows of a partition when they are published.
func rowsOf(pool *pgxpool.Pool, partition string) *rowoutput.Output {
	return &rowoutput.Output{Publish: func(ctx context.Context, first int, rows []int) error {
		_, err := pool.Exec(ctx, `INSERT INTO rows SELECT $1, $2::int + n - 1, v FROM unnest($3::int[]) WITH ORDINALITY AS r (v, n)
			ON CONFLICT (partition, n) DO UPDATE SET v = CASE WHEN rows.v = excluded.v THEN rows.v END`, partition, first, rows)
		return err
	}}
}

func openPipelines(ctx context.Context, url string) (pipelinekill.Engine, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return pipelinekill.Engine{}, err
	}
	input := make([]int, pipelinekill.Elements())
	for i := range input {
		input[i] = i
	}
	return pipelinekill.Engine{
		Locks: postgres.New(pool).Locks(), Stores: &pgcheckpoint.Stores{Pool: pool},
		Input:  func(string) checkpoint.Input[int] { return checkpointtest.NewSliceInput(input) },
		Output: func(p string) checkpoint.Output[int] { return rowsOf(pool, p) },
		Close:  pool.Close,

		Unordered: true,
	}, nil
}

// Laws C1 and P1, over processes: workers are killed, and stopped for longer than their
// leases and continued. Each row is in the table once, and right.
func TestKilledWorkers(t *testing.T) {
	server := pgtest.Start(t)
	pool := connect(t, server.URL(), nil)
	ctx := t.Context()
	require.NoError(t, (&pgcheckpoint.Stores{Pool: pool}).Migrate(ctx))
	require.NoError(t, postgres.New(pool).Migrate(ctx))
	server.Exec("CREATE TABLE rows (partition text, n int, v int NOT NULL, PRIMARY KEY (partition, n))") // a row that changes is an error
	pipelinekill.Run(t, pipelinekill.Config{
		DSN: server.URL(), Unordered: true,
		Count: func(ctx context.Context) (n int, err error) {
			return n, pool.QueryRow(ctx, "SELECT count(*) FROM rows").Scan(&n)
		},
		Rows: func(ctx context.Context, partition string) ([]int, error) {
			rows, err := pool.Query(ctx, "SELECT v FROM rows WHERE partition = $1 ORDER BY n", partition)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[int])
		},
	})
	epochs := server.Counts("SELECT name, epoch::int FROM weir_pipelines")
	sum := 0
	for _, epoch := range epochs {
		sum += epoch
	}
	t.Logf("%d assignments", sum)
	require.Greater(t, sum, len(pipelinekill.Partitions()), "partitions have changed their owners")
}
