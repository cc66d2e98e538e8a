package sqliteretry_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliteretry"
	"github.com/weirflow/weir/predicates"
)

func exec(db *sqlite.DB, query string, args ...any) error {
	return db.Write(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// Real errors of SQLite, wrapped as a program wraps them.
func TestClassifier(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.db")
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.WithBusyTimeout(10*time.Millisecond))
	require.NoError(t, err)
	defer db.Close()
	for _, query := range []string{
		"CREATE TABLE a (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL CHECK (name <> 'no')) STRICT",
		"CREATE TRIGGER refuse BEFORE INSERT ON a WHEN NEW.name = 'bad' BEGIN SELECT RAISE(ABORT, 'not this one'); END",
		"INSERT INTO a VALUES (1, 'one')",
	} {
		require.NoError(t, exec(db, query))
	}
	reading, err := sqlite.OpenDB(t.Context(), file, sqlite.WithReadOnly())
	require.NoError(t, err)
	defer reading.Close()
	busy := func() error {
		other, err := sqlite.OpenDB(t.Context(), file)
		require.NoError(t, err)
		defer other.Close()
		tx, err := other.Writer().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback() //nolint:errcheck // the test has what it needs
		return exec(db, "INSERT INTO a VALUES (2, 'two')")
	}
	full := func() error {
		var pages int
		require.NoError(t, db.Writer().QueryRowContext(t.Context(), "PRAGMA max_page_count = 1").Scan(&pages))
		err := exec(db, "INSERT INTO a VALUES (3, ?)", strings.Repeat("x", 1_000_000))
		require.NoError(t, db.Writer().QueryRowContext(t.Context(), "PRAGMA max_page_count = 1000000").Scan(&pages))
		return err
	}
	for name, c := range map[string]struct {
		err       error
		code      string
		reason    string
		again     bool // also a call that must not happen twice
		rejection bool
	}{
		"busy":        {busy(), "SQLITE_BUSY", "SQLITE_BUSY", true, false},
		"full":        {full(), "SQLITE_FULL", "SQLITE_FULL", true, false},
		"unique":      {exec(db, "INSERT INTO a VALUES (4, 'one')"), "SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT", true, true},
		"primary key": {exec(db, "INSERT INTO a VALUES (1, 'x')"), "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT", true, true},
		"not null":    {exec(db, "INSERT INTO a VALUES (4, NULL)"), "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT", true, true},
		"check":       {exec(db, "INSERT INTO a VALUES (4, 'no')"), "SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT", true, true},
		"trigger":     {exec(db, "INSERT INTO a VALUES (4, 'bad')"), "SQLITE_CONSTRAINT_TRIGGER", "SQLITE_CONSTRAINT", true, true},
		"syntax":      {exec(db, "INSERT INTO nowhere VALUES (1)"), "SQLITE_ERROR", "SQLITE_ERROR", true, true},
		"read only":   {exec(reading, "DELETE FROM a"), "SQLITE_READONLY", "SQLITE_READONLY", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, c.err)
			a := &predicates.Attempt[string]{Err: fmt.Errorf("row 7: %w", c.err)}
			reason, ok := sqliteretry.Classifier[string]()(a)
			require.True(t, ok, c.err)
			require.Equal(t, c.reason, reason.Name())
			require.Equal(t, c.rejection, reason.IsRejection())
			require.Equal(t, c.again, reason.AllowsNonIdempotentRetry())
			code, ok := sqliteretry.Code[string]()(a)
			require.True(t, ok)
			require.Equal(t, c.code, code)

			a.InDoubt = true
			reason, _ = sqliteretry.Classifier[string]()(a)
			require.False(t, reason.AllowsNonIdempotentRetry(), "another transaction of the call may have taken effect")
		})
	}
	for _, err := range []error{nil, errors.New("other"), context.DeadlineExceeded} {
		a := &predicates.Attempt[string]{Err: err}
		_, ok := sqliteretry.Classifier[string]()(a)
		require.False(t, ok)
		_, ok = sqliteretry.Code[string]()(a)
		require.False(t, ok)
	}
	require.Len(t, sqliteretry.Reasons(), 8)
}
