//go:build unix

package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/message"
)

// The user has forgotten to call Migrate.
func TestOpen_NotMigrated(t *testing.T) {
	ctx := t.Context()
	pool := connect(t, schemas(t)(t))
	s := postgres.New(pool)
	m := store.Message{Meta: message.Meta{ID: "1"}}
	for name, call := range map[string]func() error{
		"put":     func() error { return s.Put(ctx, "q", m) },
		"take":    func() error { _, err := s.Take(ctx, "q", 1, time.Minute); return err },
		"list":    func() error { _, err := s.List(ctx, "q", store.Filter{}, store.Page{Max: 1}); return err },
		"acquire": func() error { _, err := s.Locks().Acquire(ctx, "l", "me", time.Minute); return err },
		"guard": func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return s.Guard(ctx, tx, lock.Grant{Name: "l", Owner: "me", Fence: 1})
			})
		},
		"stage": func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return postgres.Stage(ctx, s, tx, "q", m) })
		},
	} {
		require.ErrorContains(t, call(), "call postgres.Engine.Migrate", name)
	}
}
