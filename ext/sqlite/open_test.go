package sqlite_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// Open makes missing tables and logs them, once. It refuses tables of a later version.
// With WithoutMigrations it does not make tables.
func TestOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.db")
	var log bytes.Buffer
	open := func(opts ...sqlite.Option) (*sqlite.Engine, error) {
		return sqlite.Open(t.Context(), file, append(opts, sqlite.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
	}
	engine, err := open(sqlite.WithoutMigrations())
	require.NoError(t, err)
	require.ErrorContains(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1), "call sqlite.Engine.Migrate")
	require.NoError(t, engine.Close())
	require.Empty(t, log.String())

	engine, err = open()
	require.NoError(t, err)
	require.Contains(t, log.String(), "made the tables of queues")
	require.Contains(t, log.String(), "0001_messages.sql")
	require.NoError(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1))
	require.NoError(t, engine.Close())
	require.NoError(t, engine.Close())
	require.Error(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1))

	log.Reset()
	engine, err = open()
	require.NoError(t, err)
	require.Empty(t, log.String())
	counts, err := delivery.NewQueue[int](engine, "q").Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, counts.Waiting)
	_, err = engine.DB().Writer().ExecContext(t.Context(), "INSERT INTO weir_migrations (component, version) VALUES ('sqlitestore', 99)")
	require.NoError(t, err)
	require.NoError(t, engine.Close())
	_, err = open()
	require.ErrorContains(t, err, "the database has version 99")
	_, err = sqlite.Open(t.Context(), "")
	require.Error(t, err)
	missing := filepath.Join(t.TempDir(), "missing")
	_, err = sqlite.Open(t.Context(), filepath.Join(missing, "shop.db"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "stat "+missing+":")
	_, err = sqlite.OpenDB(t.Context(), missing, sqlite.WithReadOnly())
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Writes to a removed file would be lost with it.
func TestOpen_FileRemovedOrReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a file that is open stays on Windows")
	}
	for name, replace := range map[string]func(file string) error{
		"removed": os.Remove,
		"replaced": func(file string) error {
			return errors.Join(os.WriteFile(file+".new", nil, 0o600), os.Rename(file+".new", file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "shop.db")
			engine, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer engine.Close()
			queue := delivery.NewQueue[int](engine, "q")
			require.NoError(t, queue.Put(t.Context(), 1))
			require.NoError(t, replace(file))
			require.ErrorContains(t, queue.Put(t.Context(), 2), "shop.db\" has been removed or replaced since it was opened")
		})
	}
}

// PutTx is a part of the caller's transaction.
func TestPutTx(t *testing.T) {
	engine, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	q := delivery.NewQueue[int](engine, "q")
	for _, commit := range []bool{true, false} {
		tx, err := engine.DB().Writer().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sqlite.PutTx(t.Context(), tx, q, 1))
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		counts, err := q.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Waiting, "commit: %v", commit)
	}
	tx, err := engine.DB().Writer().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // nothing was done in it
	require.ErrorContains(t, sqlite.PutTx(t.Context(), tx, delivery.NewQueue[int](memory.Open(), "q"), 1), `queue "q" is on a *memory.Engine`)
	require.ErrorIs(t, sqlite.PutTx(t.Context(), tx, delivery.NewQueue[float64](engine, "q"), math.NaN()), message.ErrRefused)
}
