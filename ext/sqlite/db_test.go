package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func openTest(t testing.TB, opts ...Option) *DB {
	t.Helper()
	db, err := OpenDB(t.Context(), filepath.Join(t.TempDir(), "test.db"), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	_, err = db.Writer().ExecContext(t.Context(), "CREATE TABLE entries (id INTEGER PRIMARY KEY, v BLOB NOT NULL) STRICT")
	require.NoError(t, err)
	return db
}

func count(t testing.TB, db *DB) (n int) {
	t.Helper()
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM entries").Scan(&n))
	return n
}

func insert(id int) func(context.Context, *Tx) error {
	return func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO entries (id, v) VALUES (?, ?)", id, []byte("v"))
		return err
	}
}

func TestOpenSettings(t *testing.T) {
	pragma := func(q interface {
		Scan(dest ...any) error
	},
	) (v string) {
		require.NoError(t, q.Scan(&v))
		return v
	}
	for name, want := range map[string]struct {
		opts        []Option
		synchronous string
	}{
		"default": {nil, "2"},
		"normal":  {[]Option{WithSynchronousNormal()}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			db := openTest(t, want.opts...)
			assert.Equal(t, "wal", pragma(db.Writer().QueryRow("PRAGMA journal_mode")))
			assert.Equal(t, want.synchronous, pragma(db.Writer().QueryRow("PRAGMA synchronous")))
			assert.Equal(t, "10000", pragma(db.Writer().QueryRow("PRAGMA busy_timeout")))
			assert.Equal(t, "1", pragma(db.Writer().QueryRow("PRAGMA foreign_keys")))
			assert.Equal(t, "1", pragma(db.Reader().QueryRow("PRAGMA query_only")))
			assert.Equal(t, "1", pragma(db.Reader().QueryRow("PRAGMA foreign_keys")))
			_, err := db.Reader().Exec("DELETE FROM entries")
			assert.ErrorContains(t, err, "readonly")
		})
	}
}

func TestOpenPaths(t *testing.T) {
	for _, name := range []string{"plain.db", "with space.db", "what?.db", "100%41.db", "a#b&c=d.db", "é.db"} {
		path := filepath.Join(t.TempDir(), name)
		db, err := OpenDB(t.Context(), path)
		require.NoError(t, err, name)
		assert.FileExists(t, path)
		require.NoError(t, db.Close())
	}
	dir := t.TempDir()
	for path, want := range map[string]string{
		"":                                   "the path of the file is empty",
		":memory:":                           "memory.Open",
		"file:x.db":                          `not the path of a file: use "x.db"`,
		"sqlite:x.db":                        `not the path of a file: use "x.db"`,
		"sqlite:///x.db":                     `not the path of a file: use "/x.db"`,
		"file:x.db?_pragma=busy_timeout(1)":  `not the path of a file: use "x.db"`,
		"x.db?_pragma=busy_timeout(1)":       "WithBusyTimeout",
		"x.db?key=hunter2":                   `open "x.db": a path does not have parameters`,
		"file:x.db?key=hunter2":              `not the path of a file: use "x.db"`,
		":memory:?key=hunter2":               "memory.Open",
		"sqlite://u:hunter2@db/x.db":         `not the path of a file: use "u:xxxxx@db/x.db"`,
		"postgres://u:hunter2@db/x?port=543": `begins with "postgres:" is not the path of a file: for PostgreSQL use postgres.Open`,
		"postgres:u:hunter2@db/x":            "for PostgreSQL use postgres.Open",
		"host=db user=u password=hunter2":    "for PostgreSQL use postgres.Open",
		"FILE:x.db":                          `not the path of a file: use "x.db"`,
		dir:                                  "this is a directory",
	} {
		_, err := OpenDB(t.Context(), path)
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	assert.NoFileExists(t, "x.db?_pragma=busy_timeout(1)")
	_, err := OpenDB(t.Context(), filepath.Join(t.TempDir(), "missing", "x.db"))
	assert.ErrorContains(t, err, "missing")
}

// SQLite does not say why it cannot open a file: here, since it cannot make the log beside
// it.
func TestOpenDB_DirectoryIsNotWritable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := OpenDB(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, os.Mkdir(path+"-wal", 0o700)) // works for root as well, for whom every directory is writable
	_, err = OpenDB(t.Context(), path)
	require.ErrorContains(t, err, "the file and its directory must be writable")
	require.ErrorContains(t, err, path)
	_, err = OpenDB(t.Context(), path, WithReadOnly())
	require.ErrorContains(t, err, "the last writes are in")
	require.NotContains(t, err.Error(), "WithReadOnly", "it is set already")
}

// Not everything that looks like a URL or a parameter is one.
func TestCheckPath_Paths(t *testing.T) {
	for _, path := range []string{`C:\orders.db`, "C:/orders.db", "C://orders.db", `\\?\C:\a=b\orders.db`, "/what?/a=b/orders.db", "orders?.db", "a=b.db", "my:orders.db"} {
		assert.NoError(t, checkPath(path))
	}
}

// Each of many calls gets its own result, and failed calls leave no effect.
func TestWriteResultsOfEach(t *testing.T) {
	db := openTest(t)
	errOdd := errors.New("odd")
	const n = 400
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
				if err := insert(i)(ctx, tx); err != nil {
					return err
				}
				switch i % 4 {
				case 1:
					return errOdd
				case 2:
					return insert(i)(ctx, tx) // the same id again
				case 3:
					panic("three")
				}
				return nil
			})
		})
	}
	wg.Wait()
	for i, err := range errs {
		switch i % 4 {
		case 0:
			assert.NoError(t, err)
		case 1:
			assert.ErrorIs(t, err, errOdd)
		case 2:
			assert.ErrorContains(t, err, "UNIQUE")
		case 3:
			assert.ErrorContains(t, err, "panic in user code: three")
		}
	}
	assert.Equal(t, n/4, count(t, db))
}

// Calls that wait share one transaction: its COMMIT is one fsync.
func TestWriteShares(t *testing.T) {
	db := openTest(t)
	_, err := db.Writer().Exec("CREATE TABLE transactions (id INTEGER PRIMARY KEY)")
	require.NoError(t, err)
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, db.Write(t.Context(), func(context.Context, *Tx) error {
			close(inside)
			<-release
			return nil
		}))
	})
	<-inside
	var batches sync.Map
	for i := range 50 {
		wg.Go(func() {
			assert.NoError(t, db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
				batches.Store(tx.shared, true)
				return insert(i)(ctx, tx)
			}))
		})
	}
	waitFor(t, db, 50)
	close(release)
	wg.Wait()
	shared := 0
	batches.Range(func(any, any) bool { shared++; return true })
	assert.Equal(t, 1, shared)
	assert.Equal(t, 50, count(t, db))
}

func waitFor(t testing.TB, db *DB, n int) {
	t.Helper()
	for {
		if db.group.Waiting() == n {
			return
		}
		require.NoError(t, t.Context().Err())
		runtime.Gosched()
	}
}

// A call whose context ends while it waits has no effect. A running call is not
// interrupted, since that would roll back the others, too.
func TestWriteContext(t *testing.T) {
	db := openTest(t)
	inside, release := make(chan struct{}), make(chan struct{})
	running, cancelRunning := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, db.Write(running, func(ctx context.Context, tx *Tx) error {
			close(inside)
			<-release
			assert.NoError(t, ctx.Err())
			return insert(1)(running, tx)
		}))
	})
	<-inside
	waiting, cancelWaiting := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	result := make(chan error)
	go func() { result <- db.Write(waiting, insert(2)) }()
	waitFor(t, db, 1)
	cancelWaiting(errGone)
	assert.ErrorIs(t, <-result, errGone)
	wg.Go(func() { assert.NoError(t, db.Write(t.Context(), insert(3))) })
	waitFor(t, db, 1)
	cancelRunning()
	close(release)
	wg.Wait()
	assert.Equal(t, 2, count(t, db))
}

func TestWriteGoexit(t *testing.T) {
	db := openTest(t)
	err := db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
		assert.NoError(t, insert(1)(ctx, tx))
		runtime.Goexit()
		return nil
	})
	assert.ErrorContains(t, err, "Goexit")
	require.NoError(t, db.Write(t.Context(), insert(2)))
	assert.Equal(t, 1, count(t, db))
}

// If SQLite rolls the transaction back, all of its calls return errors, and have no
// effect.
func TestWriteTransactionFails(t *testing.T) {
	db := openTest(t)
	errs := together(t, db, 3, func(ctx context.Context, tx *Tx, i int) error {
		if err := insert(i)(ctx, tx); err != nil {
			return err
		}
		if i == 1 {
			_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO entries (id, v) VALUES (1, x'00')")
			assert.Error(t, err)
			assert.Error(t, insert(17)(ctx, tx)) // it would be committed at once
			assert.Error(t, tx.QueryRowContext(ctx, "SELECT 1").Err())
		}
		return nil // which hides the error
	})
	assert.ErrorContains(t, errs[0], "the transaction was rolled back")
	assert.ErrorContains(t, errs[1], "UNIQUE")
	assert.ErrorContains(t, errs[2], "the transaction was rolled back")
	assert.Equal(t, 0, count(t, db))
	require.NoError(t, db.Write(t.Context(), insert(9)))
}

// A COMMIT that fails leaves no transaction behind: the next call begins its own.
func TestWriteCommitFails(t *testing.T) {
	db := openTest(t)
	write := func(statement string) error {
		return db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		})
	}
	require.NoError(t, write("CREATE TABLE lines (id INTEGER REFERENCES entries (id) DEFERRABLE INITIALLY DEFERRED)"))
	for range 3 {
		assert.ErrorContains(t, write("INSERT INTO lines (id) VALUES (17)"), "FOREIGN KEY")
		require.NoError(t, db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
			var n int
			assert.NoError(t, tx.QueryRowContext(ctx, "SELECT count(*) FROM lines").Scan(&n))
			assert.Zero(t, n)
			return nil
		}))
	}
	require.NoError(t, db.Write(t.Context(), insert(9)))
	assert.Equal(t, 1, count(t, db))
}

// A statement whose error is hidden fails its call only.
func TestWriteHiddenError(t *testing.T) {
	db := openTest(t)
	errs := together(t, db, 3, func(ctx context.Context, tx *Tx, i int) error {
		assert.NoError(t, insert(i)(ctx, tx))
		if i == 1 {
			_ = insert(i)(ctx, tx)
		}
		return nil
	})
	assert.NoError(t, errs[0])
	assert.ErrorContains(t, errs[1], "UNIQUE")
	assert.NoError(t, errs[2])
	assert.Equal(t, 2, count(t, db))
}

func together(t *testing.T, db *DB, n int, fn func(ctx context.Context, tx *Tx, i int) error) []error {
	t.Helper()
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, db.Write(t.Context(), func(context.Context, *Tx) error {
			close(inside)
			<-release
			return nil
		}))
	})
	<-inside
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = db.Write(t.Context(), func(ctx context.Context, tx *Tx) error { return fn(ctx, tx, i) })
		})
		waitFor(t, db, i+1)
	}
	close(release)
	wg.Wait()
	return errs
}

func TestTxAfterReturn(t *testing.T) {
	db := openTest(t)
	var kept *Tx
	require.NoError(t, db.Write(t.Context(), func(_ context.Context, tx *Tx) error {
		kept = tx
		return nil
	}))
	_, err := kept.ExecContext(t.Context(), "DELETE FROM entries")
	assert.ErrorIs(t, err, errTxDone)
	_, err = kept.QueryContext(t.Context(), "SELECT 1")
	assert.ErrorIs(t, err, errTxDone)
	assert.ErrorIs(t, kept.QueryRowContext(t.Context(), "SELECT 1").Err(), context.Canceled)
}

// Statements become prepared, up to a bound, and stay right when they are.
func TestWritePrepares(t *testing.T) {
	db := openTest(t)
	for i := range 3 * maxPrepared {
		require.NoError(t, db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT "+strconv.Itoa(i)+" + count(*) FROM entries").Scan(&n); err != nil {
				return err
			}
			assert.Equal(t, 2*i, n)
			rows, err := tx.QueryContext(ctx, "SELECT id FROM entries ORDER BY id DESC LIMIT 1")
			if err != nil {
				return err
			}
			for rows.Next() {
				assert.NoError(t, rows.Scan(&n))
				assert.Equal(t, i-1, n)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
			return insert(i)(ctx, tx)
		}))
	}
	assert.Len(t, db.statements.prepared, maxPrepared)
}

func TestWriteAfterClose(t *testing.T) {
	db, err := OpenDB(t.Context(), filepath.Join(t.TempDir(), "test.db"))
	require.NoError(t, err)
	require.NoError(t, db.Close())
	assert.ErrorContains(t, db.Write(t.Context(), insert(1)), "closed")
}

// Two processes are two DBs: neither sees SQLITE_BUSY.
func TestDB_Two(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	var dbs [2]*DB
	for i := range dbs {
		var err error
		dbs[i], err = OpenDB(t.Context(), path)
		require.NoError(t, err)
		defer dbs[i].Close()
	}
	_, err := dbs[0].Writer().Exec("CREATE TABLE entries (id INTEGER PRIMARY KEY, v BLOB NOT NULL) STRICT")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() { assert.NoError(t, dbs[i%2].Write(t.Context(), insert(i))) })
	}
	wg.Wait()
	assert.Equal(t, 60, count(t, dbs[1]))
}

func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run("at_once="+strconv.Itoa(n), func(b *testing.B) {
			db := openTest(b)
			b.SetParallelism(n / 2)
			var mu sync.Mutex
			id := 0
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					mu.Lock()
					id++
					i := id
					mu.Unlock()
					if err := db.Write(b.Context(), insert(i)); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// A file is opened read-only, also while another process has it open and writes.
func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
	_, err := OpenDB(t.Context(), path, WithReadOnly())
	require.Error(t, err, "there is no such file")
	db, err := OpenDB(t.Context(), path)
	require.NoError(t, err)
	write := func(db *DB, statement string) error {
		return db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		})
	}
	require.NoError(t, write(db, "CREATE TABLE t (n INTEGER)"))
	look := func(want int) {
		t.Helper()
		readOnly, err := OpenDB(t.Context(), path, WithReadOnly())
		require.NoError(t, err)
		defer readOnly.Close()
		var n int
		require.NoError(t, readOnly.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM t").Scan(&n))
		require.Equal(t, want, n)
		require.ErrorContains(t, write(readOnly, "INSERT INTO t VALUES (1)"), "readonly")
	}
	look(0)
	require.NoError(t, write(db, "INSERT INTO t VALUES (1)"))
	look(1)
	require.NoError(t, db.Close())
	look(1)
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing is left beside it")
}
