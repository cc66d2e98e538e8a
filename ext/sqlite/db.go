package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"modernc.org/libc"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/internal/guard"
)

// DB is an SQLite database: one writer, several readers. It is safe for concurrent use.
type DB struct {
	writer, reader *sql.DB
	group          group.Group[*write]
	statements     statements
}

type config struct {
	synchronous string
	busyTimeout time.Duration
	readers     int
	readOnly    bool
	noTables    bool
	clock       clock.Clock
	logger      *slog.Logger
}

func configOf(opts []Option) config {
	c := config{synchronous: "FULL", busyTimeout: 10 * time.Second, readers: 4, clock: clock.New(), logger: slog.Default()}
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// Option changes how [Open] and [OpenDB] open a database.
type Option func(*config)

// WithoutTables keeps [Open] from making or changing tables: see [Migrations].
func WithoutTables() Option { return func(c *config) { c.noTables = true } }

// WithClock sets the clock of the engine; the default is the machine's. It panics if c is nil.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("sqlite: WithClock", "clock", c)
	return func(s *config) { s.clock = c }
}

// WithLogger sets the logger of [Open]; the default is slog.Default(). It panics if l is nil.
func WithLogger(l *slog.Logger) Option {
	guard.RefuseNil("sqlite: WithLogger", "logger", l)
	return func(c *config) { c.logger = l }
}

// WithSynchronousNormal makes a commit cheaper, since it does not wait for the disk. The last commits may be lost in a power cut, but the
// database stays whole. By default synchronous is FULL.
func WithSynchronousNormal() Option {
	return func(c *config) { c.synchronous = "NORMAL" }
}

// WithBusyTimeout sets how long a transaction waits while another process writes; then it
// fails with SQLITE_BUSY. Default 10 s, at least 0.
func WithBusyTimeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("sqlite.WithBusyTimeout: %v is negative", d))
	}
	return func(c *config) { c.busyTimeout = d }
}

// WithReadOnly opens an existing file that this process may not write. Writes fail. If no program has the file open, none must change it until
// Close.
func WithReadOnly() Option { return func(c *config) { c.readOnly = true } }

// WithReaders sets how many connections read at once. Default 4, at least 1.
func WithReaders(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("sqlite.WithReaders: %d is less than 1", n))
	}
	return func(c *config) { c.readers = n }
}

// OpenDB opens the database in the file at path, and makes the file if it is missing. It does not make tables. A database in memory is refused,
// since each connection would have its own.
func OpenDB(ctx context.Context, path string, opts ...Option) (*DB, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.HasPrefix(path, "file:") {
		return nil, fmt.Errorf("sqlite: open %q: not the path of a file", path)
	}
	c := configOf(opts)
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	params := url.Values{}
	params.Set("_busy_timeout", strconv.FormatInt(c.busyTimeout.Milliseconds(), 10))
	params.Set("_foreign_keys", "on")
	params.Set("_dqs", "0") // a name in double quotes is never a string
	read := params.Encode() + "&_query_only=on"
	if c.readOnly {
		if read += "&mode=ro"; !exists(path + "-wal") {
			read += "&immutable=1" // the files that SQLite would make beside it are not needed
		}
	}
	params.Set("_journal_mode", "WAL")
	params.Set("_synchronous", c.synchronous)
	params.Set("_txlock", "immediate")
	params.Set("_pragma", "journal_size_limit(67108864)") // after a long reader the log shrinks again

	keepMemory()
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
	db := &DB{}
	db.group = group.Group[*write]{Run: db.runAll, Max: maxShared}
	write := params.Encode()
	if c.readOnly {
		write = read
	}
	if db.writer, err = open(ctx, name+"?"+write, 1); err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	if db.reader, err = open(ctx, name+"?"+read, c.readers); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %q: %w", path, err), db.writer.Close())
	}
	return db, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// keepMemory keeps one piece of 16 kB of the driver's allocator, for ever. SQLite takes and frees one for each page of an
// index that is full; the allocator would ask the system for it each time, which took a third of an INSERT.
var keepMemory = sync.OnceFunc(func() {
	tls := libc.NewTLS()
	defer tls.Close()
	libc.Xmalloc(tls, 1<<14)
})

// open opens a pool and one connection of it, so that what is wrong is reported now.
func open(ctx context.Context, dsn string, conns int) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Writer returns the pool with the single connection that writes. BeginTx takes the write lock. A goroutine that holds a transaction must not
// ask the pool for another connection, nor call [DB.Write], which would deadlock.
func (db *DB) Writer() *sql.DB { return db.writer }

// Reader returns the pool of the connections that read. They see the state committed when their transaction begins.
func (db *DB) Reader() *sql.DB { return db.reader }

// Close closes the database. Calls of Write that wait return an error.
func (db *DB) Close() error {
	// The writer last: the last connection to go puts the log into the database.
	return errors.Join(db.reader.Close(), db.writer.Close())
}
