package sqlite_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/fleettest"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/internal/testing/storecrash"
	"github.com/weirflow/weir/internal/testing/workerkill"
	"github.com/weirflow/weir/message"
)

func init() { // TestMain is in package sqlite
	sqlite.Children = append(sqlite.Children,
		func() { storecrash.Child(openForCrash) },
		func() { workerkill.Child(openForWorkers) },
		relayChild,
		func() { fleettest.Child(openForFleet) },
	)
}

// Laws D1, D5.
func TestKilledAtEachStatement(t *testing.T) {
	storecrash.Run(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "queues.db") }, openForCrash)
}

func openForCrash(ctx context.Context, path string, step func()) (store.Inspector, error) {
	s, err := sqlite.Open(ctx, path, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	sqlite.SetStep(s, step)
	return s, nil
}

// open opens a database with the tables, which the test closes.
func open(t testing.TB, path string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), path, sqlite.WithSynchronousNormal())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	return db
}

func TestStore(t *testing.T) {
	deliverytest.RunStore(t, func(t *testing.T) deliverytest.StoreSetup {
		mock := clock.NewMock()
		mock.Set(time.Unix(1_700_000_000, 0))
		path := filepath.Join(t.TempDir(), "queues.db")
		db := open(t, path)
		opened := 0
		return deliverytest.StoreSetup{
			Open: func() (store.Store, error) {
				if opened++; opened > 1 {
					return sqlite.New(open(t, path), sqlite.WithClock(mock)), nil
				}
				return sqlite.New(db, sqlite.WithClock(mock)), nil
			},
			Wait:    mock.Add,
			SetBack: func(d time.Duration) { mock.Set(mock.Now().Add(-d)) },
			Full: func() (store.Store, error) {
				db := open(t, filepath.Join(t.TempDir(), "small.db"))
				_, err := db.Writer().ExecContext(t.Context(), "PRAGMA max_page_count = 60")
				return sqlite.New(db), err
			},
		}
	})
}

func TestSource(t *testing.T) {
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")))
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		n := 0
		q := delivery.NewQueue[string](s, "q", delivery.RetryAfter(time.Minute))
		return deliverytest.Queue[string]{
			Open: func() (delivery.Source[string], error) { return q.Source(nil), nil },
			Put: func(values ...string) (err error) {
				for _, v := range values {
					n++
					err = errors.Join(err, q.Put(t.Context(), v, delivery.ID(strconv.Itoa(n))))
				}
				return err
			},
			Keeps: true, Shared: true,
		}
	}, func(i int) string { return "value " + strconv.Itoa(i) })
}

// Law D3.
func TestClockGoesOnInTheNextRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queues.db")
	mock := clock.NewMock()
	run := func(wall int64) *sqlite.Engine {
		mock.Set(time.Unix(wall, 0))
		return sqlite.New(open(t, path), sqlite.WithClock(mock))
	}
	message := func(id string, d time.Duration) store.Message {
		return store.Message{Meta: message.Meta{ID: id}, Delay: d}
	}
	require.NoError(t, run(1000).Put(t.Context(), "q", message("some", 0)))
	s := run(100) // the machine's clock was set back
	require.NoError(t, s.Put(t.Context(), "waiting", message("a", 10*time.Second)))
	mock.Add(9 * time.Second)
	require.NoError(t, s.Put(t.Context(), "q", message("other", 0)))
	s = run(1009) // it is right again
	taken, err := s.Take(t.Context(), "waiting", 10, time.Second)
	require.NoError(t, err)
	require.Empty(t, taken, "a message that was put while the clock was wrong is early")
	mock.Add(time.Second)
	taken, err = s.Take(t.Context(), "waiting", 10, time.Second)
	require.NoError(t, err)
	require.Len(t, taken, 1)
}

// The store's clock does not go back for readers either: a message that was due can be
// taken, and a lock that has ended is not held, even for a process that only reads.
func TestClockOfReadersGoesOnInTheNextRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queues.db")
	mock := clock.NewMock()
	run := func(wall int64) *sqlite.Engine {
		mock.Set(time.Unix(wall, 0))
		return sqlite.New(open(t, path), sqlite.WithClock(mock))
	}
	s := run(1000)
	require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "a"}}))
	_, err := s.Locks().Acquire(t.Context(), "outbox", "host a", time.Second)
	require.NoError(t, err)
	mock.Add(time.Minute)
	_, err = s.Locks().Acquire(t.Context(), "other", "host a", time.Hour)
	require.NoError(t, err)

	s = run(100) // the machine's clock was set back
	c, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, time.Minute, c.Age)
	held, err := run(100).Locks().Held(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, held, 1)
	require.Equal(t, time.Hour, held[0].For)
	taken, err := run(100).Take(t.Context(), "q", 10, time.Second)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	entries, err := run(100).List(t.Context(), "q", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Equal(t, time.Unix(1061, 0).UTC(), entries[0].LeasedUntil)
}

// Regression: a transaction of the caller, which waits for a call or keeps one waiting,
// and Close waited for each other for ever.
func TestCloseBesideATransactionThatPuts(t *testing.T) {
	s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")))
	tx, err := open(t, filepath.Join(t.TempDir(), "other.db")).Writer().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // the test is over
	require.NoError(t, storebench.CloseBesideATransaction(t, s, func(ctx context.Context, id string) error {
		return sqlite.Stage(ctx, s, tx, "q", store.Message{Meta: message.Meta{ID: id}})
	}))
}
