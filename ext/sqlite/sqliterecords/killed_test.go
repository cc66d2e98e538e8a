package sqliterecords_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
	"github.com/weirflow/weir/internal/testing/killtest"
)

const countersSQL = `CREATE TABLE totals (step TEXT PRIMARY KEY, total INTEGER NOT NULL) STRICT;
CREATE TABLE additions (step TEXT NOT NULL, position INTEGER NOT NULL) STRICT`

// counters are a service whose additions are stored with their answers.
type counters struct {
	*sqliterecords.Records
	db *sqlite.DB
}

func openCounters(ctx context.Context, path string) (killtest.Service, error) {
	db, err := sqlite.OpenDB(ctx, path)
	if err != nil {
		return nil, err
	}
	return counters{sqliterecords.New(db), db}, nil
}

// Add shares a transaction with others, or has its own.
func (c counters) Add(ctx context.Context, req exactlyonce.Request, a killtest.Addition, answer []byte) ([]byte, error) {
	add := func(ctx context.Context, tx sqliterecords.Tx) ([]byte, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO totals (step, total) VALUES (?, ?)
			ON CONFLICT (step) DO UPDATE SET total = total + excluded.total`, a.Step, a.Value)
		if err != nil {
			return nil, err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO additions (step, position) VALUES (?, ?)", a.Step, a.Position)
		return answer, err
	}
	if rand.IntN(4) > 0 {
		return c.Run(ctx, req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) { return add(ctx, tx) })
	}
	tx, err := c.db.Writer().BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // it is committed, or there is another error
	if _, err = add(ctx, tx); err != nil {
		return nil, err
	}
	if err := c.Put(ctx, tx, req, answer); err != nil {
		return nil, err
	}
	return answer, tx.Commit()
}

func books(ctx context.Context, db *sql.DB) (killtest.Books, error) {
	b := killtest.NewBooks()
	each := func(query string, f func(step string, n int64)) error {
		rows, err := db.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		for rows.Next() {
			var step string
			var n int64
			if err := rows.Scan(&step, &n); err != nil {
				return errors.Join(err, rows.Close())
			}
			f(step, n)
		}
		return errors.Join(rows.Err(), rows.Close())
	}
	return b, errors.Join(
		each("SELECT step, total FROM totals", func(step string, n int64) { b.Totals[step] = n }),
		each("SELECT step, position FROM additions", func(step string, position int64) { b.Added[step][position]++ }),
	)
}

// Servers and clients are killed; the database decides what has happened (laws X1, X2).
func TestKilledServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	db := open(t, path)
	_, err := db.Writer().Exec(countersSQL)
	require.NoError(t, err)
	killtest.Run(t, killtest.Config{
		Database: path, Servers: 1,
		Books: func(ctx context.Context) (killtest.Books, error) { return books(ctx, db.Reader()) },
	})
}
