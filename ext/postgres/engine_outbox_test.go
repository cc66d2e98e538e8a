//go:build unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

func TestLocks(t *testing.T) {
	newSchema := schemas(t)
	deliverytest.RunLocks(t, func(t *testing.T) deliverytest.LockSetup {
		pool := connect(t, newSchema(t))
		require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		exec := func(sql string, args ...any) {
			_, err := pool.Exec(t.Context(), sql, args...)
			require.NoError(t, err)
		}
		exec("CREATE TABLE test_clock AS SELECT timestamptz '2026-01-01' AS now")
		return deliverytest.LockSetup{
			Open: func() (lock.Locks, error) {
				s := postgres.New(pool)
				postgres.SetNow(s, "(SELECT now FROM test_clock)")
				return s.Locks(), nil
			},
			Wait: func(d time.Duration) {
				exec("UPDATE test_clock SET now = now + $1 * interval '1 microsecond'", d.Microseconds())
			},
		}
	})
}

// Law W3: the row of an unused name is removed, but its fencing numbers keep rising.
func TestLocksForgetNames(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	acquire := func(l lock.Locks, name string) lock.Grant {
		g, err := l.Acquire(t.Context(), name, "me", time.Minute)
		require.NoError(t, err)
		return g
	}
	l := postgres.New(pool).Locks()
	for range 7 {
		require.NoError(t, l.Release(t.Context(), acquire(l, "a")))
	}
	killed := acquire(l, "killed")
	exec("INSERT INTO weir_locks (name, owner, fence, until) SELECT 'name ' || n, 'me', 1, now() FROM generate_series(1, 1500) AS n")
	exec("UPDATE weir_locks SET until = until - interval '25 hours'")
	require.NoError(t, l.Extend(t.Context(), killed, time.Minute), "nobody else has it")

	l = postgres.New(pool).Locks() // it has not looked yet
	kept := acquire(l, "kept")     // all old rows are removed, in steps
	acquire(l, "kept, too")
	var rows int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM weir_locks WHERE name <> ''").Scan(&rows))
	require.Equal(t, 3, rows)
	require.Greater(t, acquire(l, "a").Fence, uint64(7))
	require.NoError(t, l.Extend(t.Context(), kept, time.Minute))
	exec("UPDATE weir_locks SET until = until - interval '25 hours'")
	l = postgres.New(pool).Locks()
	acquire(l, "b")
	require.ErrorIs(t, l.Extend(t.Context(), killed, time.Minute), lock.ErrLost)
	require.Greater(t, acquire(l, "a").Fence, uint64(8), "twice")
}

// While names are removed and return, their fencing numbers rise.
func TestLocksForgetNamesInUse(t *testing.T) {
	newSchema := schemas(t)
	database := newSchema(t)
	pool := connect(t, database)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = pool.Exec(t.Context(), "UPDATE weir_locks SET until = until - interval '25 hours' WHERE name <> ''")
			_, _ = postgres.New(pool).Locks().Acquire(t.Context(), "sweep", "me", time.Minute)
		}
	}()
	l := postgres.New(pool).Locks()
	var last uint64
	for range 300 {
		g, err := l.Acquire(t.Context(), "a", "me", time.Minute)
		if errors.Is(err, lock.ErrHeld) {
			continue
		}
		require.NoError(t, err)
		require.Greater(t, g.Fence, last)
		last = g.Fence
	}
	close(stop)
	<-ended
	require.Positive(t, last)
}

// A stale owner's write is refused in its transaction, and a takeover waits for a write
// that was guarded.
func TestGuard(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	engine := postgres.New(pool)
	locks := engine.Locks()
	const soon = 200 * time.Millisecond
	first, err := locks.Acquire(t.Context(), "a", "first", soon)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, engine.Guard(t.Context(), tx, first))
	var second lock.Grant
	acquired := make(chan error)
	go func() {
		for {
			var err error
			second, err = locks.Acquire(t.Context(), "a", "second", time.Hour)
			if !errors.Is(err, lock.ErrHeld) {
				acquired <- err
				return
			}
		}
	}()
	select {
	case err := <-acquired:
		t.Fatal("the lock was taken over during a guarded transaction", err)
	case <-time.After(2 * soon): // its lease has ended
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-acquired)
	write := func(g lock.Grant) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return engine.Guard(t.Context(), tx, g) })
	}
	require.ErrorIs(t, write(first), lock.ErrLost)
	require.NoError(t, write(second))
}

type published struct {
	mu  sync.Mutex
	ids []string
}

func (p *published) publish(_ context.Context, ms []store.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range ms {
		p.ids = append(p.ids, m.Meta.ID)
	}
	return nil
}

func (p *published) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.ids...)
}

func staged(id string) store.Message {
	return store.Message{Meta: message.Meta{ID: id, Key: "\x00\xff"}, Payload: []byte(id)}
}

// A staged message is published if, and only if, its transaction was committed, even if
// it commits late, with a lower position.
func TestOutbox(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var p published
	ended := make(chan error)
	go func() {
		// It polls so rarely that the test needs the notifications.
		ended <- outbox.Relay(ctx, s, s.Locks(), outbox.Config{Queue: "outbox", Publish: p.publish, MaxPoll: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	}()
	begin := func() pgx.Tx {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		return tx
	}
	late := begin()
	require.NoError(t, postgres.Stage(t.Context(), s, late, "outbox", staged("late")))
	undone := begin()
	require.NoError(t, postgres.Stage(t.Context(), s, undone, "outbox", staged("undone")))
	var want []string
	for i := range 5 {
		tx := begin()
		id := strconv.Itoa(i)
		require.NoError(t, postgres.Stage(t.Context(), s, tx, "outbox", staged(id)))
		require.NoError(t, tx.Commit(t.Context()))
		want = append(want, id)
		require.Eventually(t, func() bool { return len(p.all()) == len(want) }, time.Minute, time.Millisecond)
	}
	require.NoError(t, undone.Rollback(t.Context()))
	require.NoError(t, late.Commit(t.Context()))
	want = append(want, "late")
	require.Eventually(t, func() bool { return len(p.all()) == len(want) }, time.Minute, time.Millisecond)

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
		require.NoError(t, err)
		require.NoError(t, postgres.StageSQL(t.Context(), s, tx, "outbox", staged("database/sql"), staged("twice"), staged("twice")))
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
	}
	want = append(want, "database/sql", "twice")
	require.Eventually(t, func() bool { return len(p.all()) == len(want) }, time.Minute, time.Millisecond)
	require.Equal(t, want, p.all())
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestEngine_MergeIntoTheOutboxWhileTheSameIDIsPublished(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	storebench.Merged(t, s, s.Locks())
}

// betweenPages is an engine that calls between after the first page of each listing.
type betweenPages struct {
	*postgres.Engine
	between func()
}

func (b betweenPages) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	entries, err := b.Engine.List(ctx, queue, f, p)
	b.between()
	return entries, err
}

func (b betweenPages) Snapshot(ctx context.Context,
	f func(list func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error)) error,
) error {
	return b.Engine.Snapshot(ctx, func(list func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error)) error {
		return f(func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
			entries, err := list(ctx, queue, f, p)
			b.between()
			return entries, err
		})
	})
}

// Messages of a transaction leave in their order, also if it commits while a relay reads
// the outbox: between two pages of a listing, or between two listings.
func TestRelay_TransactionCommitsBetweenPages(t *testing.T) {
	newSchema := schemas(t)
	for name, waiting := range map[string]int{"a short outbox": 0, "behind messages that wait": 25} {
		for commit := range 4 {
			t.Run(fmt.Sprintf("%s, commit after page %d", name, commit+1), func(t *testing.T) {
				pool := connect(t, newSchema(t))
				s := postgres.New(pool)
				require.NoError(t, s.Migrate(t.Context()))
				defer s.Close()
				m := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id}, Payload: []byte("1")} }
				for i := range waiting {
					later := m("later " + strconv.Itoa(i))
					later.Delay = time.Hour
					require.NoError(t, s.Put(t.Context(), "outbox", later))
				}
				tx, err := pool.Begin(t.Context())
				require.NoError(t, err)
				require.NoError(t, postgres.Stage(t.Context(), s, tx, "outbox", m("first")))
				for i := range 12 {
					require.NoError(t, s.Put(t.Context(), "outbox", m("other "+strconv.Itoa(i))))
				}
				require.NoError(t, postgres.Stage(t.Context(), s, tx, "outbox", m("second")))

				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				pages := 0
				var published []string
				relayed := outbox.Relay(ctx, betweenPages{s, func() {
					if pages == commit {
						assert.NoError(t, tx.Commit(t.Context()))
					}
					pages++
				}}, s.Locks(), outbox.Config{
					Queue: "outbox", Batch: 10, Logger: slog.New(slog.DiscardHandler),
					Publish: func(_ context.Context, ms []store.Message) error {
						for _, m := range ms {
							published = append(published, m.Meta.ID)
						}
						if len(published) == 14 {
							stop()
						}
						return nil
					},
				})
				require.ErrorIs(t, relayed, context.Canceled)
				require.Len(t, published, 14)
				require.Less(t, slices.Index(published, "first"), slices.Index(published, "second"))
			})
		}
	}
}
