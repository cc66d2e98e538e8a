//go:build unix

package postgres_test

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/guard"
)

// allowed are the rights that each part needs. docs/reference/permissions.md is made of
// it and of the comments in it.
var allowed = map[string][]string{
	// An engine whose tables another user has made: its queues, workers, relays, locks
	// and jobs.
	"engine": {
		"SELECT, INSERT, UPDATE, DELETE ON weir_messages", "SELECT, INSERT, UPDATE, DELETE ON weir_locks",
		"SELECT, INSERT, UPDATE, DELETE ON weir_records", "SELECT ON weir_migrations",
	},
	// A program that only puts, with the option WithoutMigrations.
	"put": {"INSERT ON weir_messages"},
	// A program that uses only locks, with the option WithoutMigrations.
	"locks": {"SELECT, INSERT, UPDATE, DELETE ON weir_locks"},
	// A look at queues and dead letters, with the command weir or the console.
	"view": {"SELECT ON weir_messages", "SELECT ON weir_locks", "SELECT ON weir_records", "SELECT ON weir_migrations"},
}

var doing = map[string]func(ctx context.Context, url string) error{
	"engine": func(ctx context.Context, url string) error {
		e, err := postgres.Open(ctx, url, postgres.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer e.Close()
		q := delivery.NewQueue[int](e, "orders", delivery.RetryAfter(time.Minute), delivery.WithLogger(quiet))
		err = q.Put(ctx, 1)
		if err != nil {
			return err
		}
		taken, err := e.Take(ctx, "orders", 1, time.Minute)
		if err != nil {
			return err
		}
		lease := taken[0].Lease
		for _, f := range []func() error{
			func() error { return e.Extend(ctx, time.Minute, lease) },
			func() error { return e.Amend(ctx, lease, store.Amendment{Delay: time.Minute}) },
			func() error {
				return e.Move(ctx, store.Move{Lease: lease, Queue: "orders-dead", Message: taken[0].Message})
			},
			func() error {
				_, err := e.Count(ctx, "orders-dead", store.Filter{})
				return err
			},
			func() error {
				g, err := e.Locks().Acquire(ctx, "lock", "me", time.Minute)
				if err != nil {
					return err
				}
				return pgx.BeginFunc(ctx, e.Pool(), func(tx pgx.Tx) error { return e.Guard(ctx, tx, g) })
			},
			func() error {
				j, err := jobs.New(e, jobs.Config{Logger: quiet})
				if err != nil {
					return err
				}
				job, err := j.Start(ctx, jobs.Spec{Do: store.Purge, Queue: "orders-dead", By: "ann", Why: "test"})
				if err != nil {
					return err
				}
				_, err = j.Run(ctx, job.ID, nil)
				return err
			},
		} {
			err := f()
			if err != nil {
				return err
			}
		}
		return nil
	},
	"put": func(ctx context.Context, url string) error {
		e, err := postgres.Open(ctx, url, postgres.WithLogger(quiet), postgres.WithoutMigrations())
		if err != nil {
			return err
		}
		defer e.Close()
		return delivery.NewQueue[int](e, "orders").Put(ctx, 1)
	},
	"locks": onlyLocks,
	"view": func(ctx context.Context, url string) error {
		e, err := postgres.Open(ctx, url, postgres.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer e.Close()
		_, err = e.List(ctx, "orders", store.Filter{}, store.Page{Max: 1})
		if err != nil {
			return err
		}
		_, err = e.Locks().Held(ctx, "")
		if err != nil {
			return err
		}
		_, err = e.Records(ctx, "job", "", 1)
		return err
	},
}

// onlyLocks uses an engine that need not have the tables of queues.
func onlyLocks(ctx context.Context, url string) error {
	e, err := postgres.Open(ctx, url, postgres.WithLogger(quiet), postgres.WithoutMigrations())
	if err != nil {
		return err
	}
	defer e.Close()
	return lock.Hold(ctx, e.Locks(), "nightly", "me", time.Minute, func(ctx context.Context, g lock.Grant) error {
		err := e.Locks().Extend(ctx, g, time.Minute)
		if err != nil {
			return err
		}
		_, err = e.Locks().Held(ctx, "")
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, e.Pool(), func(tx pgx.Tx) error { return e.Guard(ctx, tx, g) })
	})
}

// A program that uses only locks runs the two files with their table, and needs no table
// of queues. A program that opens the engine as usual later makes the other tables.
func TestMigrations_TableOfLocks(t *testing.T) {
	server := pgtest.Start(t)
	files := (*postgres.Engine)(nil).Migrations()
	for _, name := range []string{"0002_locks.sql", "0005_old_locks.sql"} {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		server.Exec(string(text))
	}
	require.NoError(t, onlyLocks(t.Context(), server.URL()))
	require.Equal(t, map[string]int{"weir_locks": 1}, server.Counts("SELECT tablename, 1 FROM pg_tables WHERE schemaname = 'public'"))

	e, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	defer e.Close()
	require.NoError(t, delivery.NewQueue[int](e, "orders").Put(t.Context(), 1))
	g, err := e.Locks().Acquire(t.Context(), "nightly", "me", time.Minute)
	require.NoError(t, err)
	require.EqualValues(t, 2, g.Fence, "fencing numbers continue")
}

// A user who does not own the tables needs exactly the rights of the reference.
// Without them the error has the statements.
func TestOpen_AnotherUserOwnsTheTables(t *testing.T) {
	server := pgtest.Start(t)
	setup, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, setup.Close())
	for part, rights := range allowed {
		t.Run(part, func(t *testing.T) {
			server.Exec("CREATE ROLE " + part + " LOGIN")
			url := strings.Replace(server.URL(), "weir@", part+"@", 1)
			err := doing[part](t.Context(), url)
			require.ErrorContains(t, err, "GRANT SELECT, INSERT, UPDATE, DELETE ON weir_messages, weir_locks, weir_records TO <user>")
			require.NotContains(t, err.Error(), "CREATE TABLE")
			require.True(t, guard.IsPermanent(err))
			for _, right := range rights {
				require.Error(t, doing[part](t.Context(), url), "%s is not needed", right)
				server.Exec("GRANT " + right + " TO " + part)
			}
			require.NoError(t, doing[part](t.Context(), url))
		})
	}
}
