package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// The user has forgotten to call Migrate.
func TestOpen_NotMigrated(t *testing.T) {
	ctx := t.Context()
	db, err := sqlite.OpenDB(ctx, filepath.Join(t.TempDir(), "empty.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	s := sqlite.New(db)
	m := store.Message{Meta: message.Meta{ID: "1"}}
	for name, call := range map[string]func() error{
		"put":  func() error { return s.Put(ctx, "q", m) },
		"take": func() error { _, err := s.Take(ctx, "q", 1, time.Minute); return err },
		"list": func() error { _, err := s.List(ctx, "q", store.Filter{}, store.Page{Max: 1}); return err },
		"stage": func() error {
			return db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error { return sqlite.Stage(ctx, s, tx, "q", m) })
		},
		"acquire": func() error { _, err := s.Locks().Acquire(ctx, "l", "me", time.Minute); return err },
		"guard": func() error {
			return db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
				return s.Guard(ctx, tx, lock.Grant{Name: "l", Owner: "me", Fence: 1})
			})
		},
	} {
		err := call()
		require.ErrorContains(t, err, "no such table: weir_", name)
		require.ErrorContains(t, err, "call sqlite.Engine.Migrate", name)
	}
	_, err = db.Reader().ExecContext(ctx, "SELECT * FROM orders")
	require.ErrorContains(t, err, "no such table: orders")
	require.NotContains(t, err.Error(), "Migrate", "a table of the user's")
}
