package sqlite

import (
	"cmp"
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
	path           string
	file           os.FileInfo // that is open
	writer, reader *sql.DB
	group          group.Group[*write]
	statements     statements
}

// Config are the settings of [Open], [OpenDB] and [New]. A zero field has its default. Where several are given, a field has the last value that is
// not zero.
type Config struct {
	Readers int // connections that read at once; the default is 4

	// SynchronousNormal makes a commit cheaper, since it does not wait for the disk. The last commits may be lost in a power cut, but the database
	// stays whole. By default synchronous is FULL.
	SynchronousNormal bool

	// ReadOnly opens an existing file that this process may not write. Writes fail. If no program has the file open, none must change it until
	// Close.
	ReadOnly bool

	// BusyTimeout is how long a call waits while another process writes; the default is 10 s. A call
	// whose context ends returns earlier. It is rounded up to a millisecond.
	BusyTimeout time.Duration

	NoTables bool         // [Open] neither makes nor changes tables: see [Engine.Migrations]
	Clock    clock.Clock  // of an [Engine]; the default is the machine's
	Logger   *slog.Logger // of [Open]; the default is slog.Default()
}

// OpenDB opens the database in the file at path, and makes the file if it is missing. It does not make tables. A database in memory is refused,
// since each connection would have its own.
func OpenDB(ctx context.Context, path string, config ...Config) (*DB, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.HasPrefix(path, "file:") || strings.HasPrefix(path, "sqlite:") {
		return nil, fmt.Errorf("sqlite: open %q: not the path of a file", path)
	}
	c := guard.Merged(config)
	if c.Readers < 0 {
		return nil, fmt.Errorf("sqlite: open %q: Config.Readers is %d", path, c.Readers)
	}
	if c.BusyTimeout < 0 {
		return nil, fmt.Errorf("sqlite: open %q: Config.BusyTimeout is %v", path, c.BusyTimeout)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	must := filepath.Dir(path)
	if c.ReadOnly {
		must = path
	}
	if _, err := os.Stat(must); err != nil { // SQLite would say that it is unable to open the file
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	params := url.Values{}
	params.Set("_busy_timeout", strconv.FormatInt((cmp.Or(c.BusyTimeout, busyTimeout)+time.Millisecond-1).Milliseconds(), 10))
	params.Set("_foreign_keys", "on")
	params.Set("_dqs", "0") // a name in double quotes is never a string
	read := params.Encode() + "&_query_only=on"
	if c.ReadOnly {
		if read += "&mode=ro"; !exists(path + "-wal") {
			read += "&immutable=1" // the files that SQLite would make beside it are not needed
		}
	}
	params.Set("_journal_mode", "WAL")
	params.Set("_synchronous", map[bool]string{false: "FULL", true: "NORMAL"}[c.SynchronousNormal])
	params.Set("_txlock", "immediate")
	params.Set("_pragma", "journal_size_limit(67108864)") // after a long reader the log shrinks again

	keepMemory()
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
	db := &DB{path: path}
	db.group = group.Group[*write]{Run: db.runAll, Max: maxShared}
	write := params.Encode()
	if c.ReadOnly {
		write = read
	}
	if db.writer, err = open(ctx, name+"?"+write, 1); err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	if db.reader, err = open(ctx, name+"?"+read, cmp.Or(c.Readers, 4)); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %q: %w", path, err), db.writer.Close())
	}
	if db.file, err = os.Stat(path); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open: %w", err), db.Close())
	}
	return db, nil
}

// check returns an error if the file has been removed or replaced since it was opened. What is written would be gone with it, and SQLite does
// not notice.
func (db *DB) check() error {
	now, err := os.Stat(db.path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(db.file, now) {
		return fmt.Errorf("sqlite: %q has been removed or replaced since it was opened: open it again", db.path)
	}
	return nil
}

// busyTimeout is the default of Config.BusyTimeout.
const busyTimeout = 10 * time.Second

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
