//go:build unix

package pgrecords_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgrecords"
	"github.com/weirflow/weir/internal/testing/killtest"
)

const (
	countersSQL = `CREATE TABLE totals (step TEXT PRIMARY KEY, total BIGINT NOT NULL);
CREATE TABLE additions (step TEXT NOT NULL, position BIGINT NOT NULL)`

	addSQL = `WITH added AS (INSERT INTO additions (step, position) VALUES ($1, $2))
INSERT INTO totals AS t (step, total) VALUES ($1, $3) ON CONFLICT (step) DO UPDATE SET total = t.total + excluded.total`
)

// counters are a service whose additions are stored with their answers.
type counters struct {
	*pgrecords.Records
	pool *pgxpool.Pool
}

func openCounters(ctx context.Context, url string) (killtest.Service, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	return counters{pgrecords.New(pool), pool}, nil
}

// Add stores an answer in one of the three ways.
func (c counters) Add(ctx context.Context, req exactlyonce.Request, a killtest.Addition, answer []byte) ([]byte, error) {
	args := []any{a.Step, a.Position, a.Value}
	switch rand.IntN(3) {
	case 0:
		return c.Exec(ctx, req, pgrecords.Statement{
			SQL: addSQL, Args: args,
			Answer: func(pgx.Rows) ([]byte, error) { return answer, nil },
		})
	case 1:
		return c.Run(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, addSQL, args...)
			return answer, err
		})
	}
	return answer, pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, addSQL, args...); err != nil {
			return err
		}
		return c.Put(ctx, tx, req, answer)
	})
}

func books(ctx context.Context, pool *pgxpool.Pool) (killtest.Books, error) {
	b := killtest.NewBooks()
	each := func(query string, f func(step string, n int64)) error {
		rows, err := pool.Query(ctx, query)
		if err != nil {
			return err
		}
		var step string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&step, &n}, func() error {
			f(step, n)
			return nil
		})
		return err
	}
	err := each("SELECT step, total FROM totals", func(step string, n int64) { b.Totals[step] = n })
	if err == nil {
		err = each("SELECT step, position FROM additions", func(step string, position int64) { b.Added[step][position]++ })
	}
	return b, err
}

// Servers and clients are killed; the database decides what has happened (laws X1, X2).
// Two servers get attempts of the same requests.
func testKilledServers(t *testing.T, server *pgtest.Server) {
	for servers := 1; servers <= 2; servers++ {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			url := schema(t, server)
			pool := connect(t, url)
			require.NoError(t, pgrecords.New(pool).Migrate(t.Context()))
			_, err := pool.Exec(t.Context(), countersSQL)
			require.NoError(t, err)
			killtest.Run(t, killtest.Config{
				Database: url, Servers: servers,
				Books: func(ctx context.Context) (killtest.Books, error) { return books(ctx, pool) },
			})
		})
	}
}
