package sqliterecords_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
	"github.com/weirflow/weir/internal/testing/killtest"
)

func TestMain(m *testing.M) {
	killtest.Child(openCounters)
	goleak.VerifyTestMain(m)
}

const table = `CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT`

const add = `INSERT INTO counters (name, n) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1`

func open(t testing.TB, path string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.OpenDB(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	require.NoError(t, sqliterecords.New(db).Migrate(context.Background()))
	return db
}

func count(ctx context.Context, db *sqlite.DB, name string) (n int, err error) {
	err = db.Reader().QueryRowContext(ctx, "SELECT coalesce(sum(n), 0) FROM counters WHERE name = ?", name).Scan(&n)
	return n, err
}

func TestStore(t *testing.T) {
	exactlyoncetest.RunStore(t, func(t *testing.T, c clock.Clock) exactlyoncetest.Setup[sqliterecords.Tx] {
		path := filepath.Join(t.TempDir(), "test.db")
		db := open(t, path)
		_, err := db.Writer().Exec(table)
		require.NoError(t, err)
		return exactlyoncetest.Setup[sqliterecords.Tx]{
			Open: func() exactlyonce.Store[sqliterecords.Tx] {
				return sqliterecords.NewBy(open(t, path), c)
			},
			Begin: func(ctx context.Context) (exactlyoncetest.Transaction[sqliterecords.Tx], error) {
				tx, err := db.Writer().BeginTx(ctx, nil)
				if err != nil {
					return exactlyoncetest.Transaction[sqliterecords.Tx]{}, err
				}
				return exactlyoncetest.Transaction[sqliterecords.Tx]{
					TX:       tx,
					Commit:   func(context.Context) error { return tx.Commit() },
					Rollback: func(context.Context) error { return tx.Rollback() },
				}, nil
			},
			Add: func(ctx context.Context, tx sqliterecords.Tx, name string) error {
				_, err := tx.ExecContext(ctx, add, name)
				return err
			},
			Count: func(ctx context.Context, name string) (int, error) { return count(ctx, db, name) },
		}
	})
}

// Many calls share transactions. Attempts of one request get the answer of the attempt
// that took effect (law X1).
func TestRun(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := db.Writer().Exec(table)
	require.NoError(t, err)
	r := sqliterecords.New(db)
	client := exactlyonce.NewClient()
	const n, attempts = 50, 4
	var mu sync.Mutex
	answers := map[int64]map[string]bool{}
	var wg sync.WaitGroup
	for i := range n * attempts {
		wg.Go(func() {
			req := exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: int64(i%n + 1), Attempt: i/n + 1}, Scope: "s"}
			answer, err := r.Run(t.Context(), req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
				_, err := tx.ExecContext(ctx, add, "total")
				return []byte{byte(req.Attempt)}, err
			})
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			if answers[req.Sequence] == nil {
				answers[req.Sequence] = map[string]bool{}
			}
			answers[req.Sequence][string(answer)] = true
		})
	}
	wg.Wait()
	total, err := count(t.Context(), db, "total")
	require.NoError(t, err)
	assert.Equal(t, n, total)
	for sequence, all := range answers {
		assert.Len(t, all, 1, "attempts of %d got different answers", sequence)
	}
}

func TestRunErrors(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := db.Writer().Exec(table)
	require.NoError(t, err)
	r := sqliterecords.New(db)
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 5, Attempt: 1}, Scope: "s"}
	effect := func(result error) ([]byte, error) {
		return r.Run(t.Context(), req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
			_, err := tx.ExecContext(ctx, add, "total")
			return []byte("done"), errors.Join(err, result)
		})
	}
	errRefused := errors.New("refused")
	_, err = effect(errRefused)
	assert.ErrorIs(t, err, errRefused)
	answer, err := effect(nil)
	require.NoError(t, err)
	assert.Equal(t, "done", string(answer))
	answer, err = effect(errRefused) // the record decides, not this attempt
	require.NoError(t, err)
	assert.Equal(t, "done", string(answer))
	total, err := count(t.Context(), db, "total")
	require.NoError(t, err)
	assert.Equal(t, 1, total)

	require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: req.Client, First: 10}}}))
	for attempt := 1; attempt < 3; attempt++ {
		req.Attempt = attempt
		_, err = effect(nil)
		assert.ErrorIs(t, err, exactlyonce.ErrStale)
	}
	req.Sequence = 0
	_, err = effect(nil)
	assert.ErrorIs(t, err, exactlyonce.ErrInvalid)
}

var _ sqliterecords.Tx = (*sql.Tx)(nil)

// The user has forgotten to call Migrate.
func TestRecords_NotMigrated(t *testing.T) {
	ctx := t.Context()
	db, err := sqlite.OpenDB(ctx, filepath.Join(t.TempDir(), "empty.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	r := sqliterecords.New(db)
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 1}}
	effect := func(context.Context, *sqlite.Tx) ([]byte, error) { return nil, nil }
	for name, call := range map[string]func() error{
		"find": func() error { _, _, err := r.Find(ctx, req); return err },
		"run":  func() error { _, err := r.Run(ctx, req, effect); return err },
		"put": func() error {
			return db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error { return r.Put(ctx, tx, req, nil) })
		},
		"acknowledge": func() error {
			return r.Acknowledge(ctx, []exactlyonce.Request{{ID: exactlyonce.ID{Client: req.Client, First: 1}}})
		},
		"collect": func() error { _, _, err := r.Collect(ctx, time.Now(), time.Now()); return err },
	} {
		err := call()
		require.ErrorContains(t, err, "no such table: weir_", name)
		require.Equal(t, 1, strings.Count(err.Error(), "call sqliterecords.Records.Migrate"), "%s: %v", name, err)
	}
	require.NoError(t, sqliterecords.New(db).Migrate(ctx))
	_, err = r.Run(ctx, req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (1)")
		return nil, err
	})
	require.ErrorContains(t, err, "no such table: orders")
	require.NotContains(t, err.Error(), "Migrate", "a table of the effect")
}

// Law W3: a collection looks at a client when its time has come, and leaves no rows
// behind.
func TestCollectionCost(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	mock := clock.NewMock()
	mock.Set(time.Unix(1_000_000_000, 0))
	r := sqliterecords.NewBy(db, mock)
	const n = 240
	for i := range n {
		req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 1}, Scope: "s"}
		effect := func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("x"), nil }
		_, err := r.Run(t.Context(), req, effect)
		require.NoError(t, err)
		if i%2 == 0 { // half of the clients have one row, the others eight
			continue
		}
		for sequence := range int64(7) {
			req.Sequence = sequence + 2
			_, err := r.Run(t.Context(), req, effect)
			require.NoError(t, err)
		}
	}
	_, err := db.Writer().Exec(`CREATE TABLE looks (id INTEGER);
CREATE TRIGGER look AFTER UPDATE ON weir_clients BEGIN INSERT INTO looks VALUES (old.id); END`)
	require.NoError(t, err)
	count := func(query string) (n int) {
		t.Helper()
		require.NoError(t, db.Reader().QueryRow(query).Scan(&n))
		return n
	}
	collect := func(want string, answers int, looks int) {
		t.Helper()
		before := count("SELECT count(*) FROM looks")
		got, _, err := r.Collect(t.Context(), mock.Now().Add(-10*time.Minute), mock.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, answers, got, want)
		require.LessOrEqual(t, count("SELECT count(*) FROM looks")-before, looks, want)
	}
	for range 3 {
		mock.Add(75 * time.Second)
		collect("nothing is due", 0, 0)
	}
	mock.Add(10 * time.Minute)
	collect("answers", n/2+8*n/2, 3*n)
	collect("once", 0, 0)
	mock.Add(20 * time.Minute)
	collect("no client is silent", 0, 0)
	mock.Add(time.Hour)
	collect("clients", 0, 3*n)
	require.Zero(t, count("SELECT count(*) FROM weir_answers"))
	require.Equal(t, n, count("SELECT count(*) FROM weir_clients"), "their marks")
	mock.Add(22 * time.Hour)
	collect("marks are kept", 0, 0)
	mock.Add(2 * time.Hour)
	collect("marks", 0, 3*n)
	require.Zero(t, count("SELECT count(*) FROM weir_clients"))

	var plan string
	require.NoError(t, db.Reader().QueryRow("EXPLAIN QUERY PLAN "+sqliterecords.DueSQL, 0, 0, 1, 1).Scan(new(int), new(int), new(int), &plan))
	require.Contains(t, plan, "INDEX weir_clients_phase (phase=? AND phase_at<?)")
}
