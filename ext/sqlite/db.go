package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"modernc.org/libc"
	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/internal/guard"
)

// DB is an SQLite database: one writer, several readers. It is safe for concurrent use.
type DB struct {
	path           string
	file           os.FileInfo // the open file
	writer, reader *sql.DB
	group          group.Group[*write]
	statements     statements
	readName       string // data source of connections that read
	watcher        *watcher
}

// OpenDB opens the database in the file at path, and makes the file if it is missing, but
// no tables. It refuses a database in memory, since each connection would have its own.
func OpenDB(ctx context.Context, path string, opts ...Option) (*DB, error) {
	set := newSettings("OpenDB", opts)
	return openDB(ctx, path, &set)
}

func openDB(ctx context.Context, path string, set *settings) (*DB, error) {
	err := checkPath(path)
	if err != nil {
		return nil, err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("sqlite: open %q: this is a directory: give the path of a file", path)
	}
	must := filepath.Dir(path)
	if set.readOnly {
		must = path
	}
	if _, err := os.Stat(must); err != nil { // SQLite would not name the cause
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	params := url.Values{}
	params.Set("_busy_timeout", strconv.FormatInt((set.busyTimeout+time.Millisecond-1).Milliseconds(), 10))
	params.Set("_foreign_keys", "on")
	params.Set("_dqs", "0") // a name in double quotes is never a string
	read := params.Encode() + "&_query_only=on"
	if set.readOnly {
		read += "&mode=ro"
		if !exists(path + "-wal") {
			read += "&immutable=1" // keeps SQLite from making files beside it
		}
	}
	params.Set("_journal_mode", "WAL")
	params.Set("_synchronous", map[bool]string{false: "FULL", true: "NORMAL"}[set.synchronousNormal])
	params.Set("_txlock", "immediate")
	params.Set("_pragma", "journal_size_limit(67108864)") // after a long reader the log shrinks again

	keepMemory()
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
	db := &DB{path: path, readName: name + "?" + read}
	db.watcher = newWatcher(db)
	db.group = group.Group[*write]{Run: db.runAll, Max: maxShared}
	write := params.Encode()
	if set.readOnly {
		write = read
	}
	db.writer, err = open(ctx, name+"?"+write, 1)
	if err != nil {
		return nil, explainOpen(path, set, err)
	}
	db.reader, err = open(ctx, db.readName, set.readers)
	if err != nil {
		return nil, errors.Join(explainOpen(path, set, err), db.writer.Close())
	}
	db.file, err = os.Stat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open: %w", err), db.Close())
	}
	return db, nil
}

// parameter is the beginning of a parameter behind a path, such as "?mode=ro". A path may
// contain a question mark: on Windows it may begin with `\\?\`.
var parameter = regexp.MustCompile(`\?\w+=`)

// checkPath refuses URLs and parameters, which other programs accept as a path. Its errors
// leave out parts of a URL that may hold a password: users, and parameters.
func checkPath(path string) error {
	scheme, rest, hasColon := strings.Cut(path, ":")
	isURL := hasColon && len(scheme) > 1 // otherwise scheme is a Windows drive
	switch {
	case path == "":
		return errors.New("sqlite: open: the path of the file is empty")
	case strings.HasPrefix(path, ":memory:"):
		return errors.New("sqlite: open \":memory:\": the database must be a file: for queues in memory use memory.Open of delivery/memory")
	case strings.Contains(strings.ToLower(path), "password="):
		return errors.New("sqlite: open: the path contains a password, so it is not the path of a file: for PostgreSQL use postgres.Open of ext/postgres")
	case isURL && (strings.EqualFold(scheme, "file") || strings.EqualFold(scheme, "sqlite")):
		address, _, _ := strings.Cut(path, "?")
		address = guard.WithoutSecrets(address)
		file := strings.TrimPrefix(strings.TrimPrefix(address, scheme+":"), "//")
		return fmt.Errorf("sqlite: open %q: this is a URL, not the path of a file: use %q", address, file)
	case isURL && (strings.HasPrefix(rest, "//") || strings.HasPrefix(strings.ToLower(scheme), "postgres")):
		return fmt.Errorf("sqlite: open: a URL that begins with %q is not the path of a file: for PostgreSQL use postgres.Open of ext/postgres", scheme+":")
	}
	at := parameter.FindStringIndex(path)
	if at != nil {
		return fmt.Errorf("sqlite: open %q: a path does not have parameters after a question mark: use options in their place, "+
			"such as WithBusyTimeout, WithReaders and WithReadOnly", path[:at[0]])
	}
	return nil
}

// explainOpen returns err with the file, and with the remedy that SQLite leaves out.
func explainOpen(path string, set *settings, err error) error {
	e, isOfSQLite := errors.AsType[*driver.Error](err)
	isDenied := isOfSQLite && slices.Contains([]int{codes.SQLITE_CANTOPEN, codes.SQLITE_READONLY}, e.Code()&0xff)
	remedy := ""
	switch {
	case !isDenied:
	case set.readOnly && exists(path+"-wal"):
		remedy = fmt.Sprintf(": the last writes are in %q, and SQLite reads them only in a directory in which it can make a file: "+
			"copy both files to such a directory", path+"-wal")
	case set.readOnly:
		remedy = ": the file must be readable"
	default:
		remedy = ": the file and its directory must be writable, because SQLite makes files beside it (WithReadOnly opens a file without writing)"
	}
	return fmt.Errorf("sqlite: open %q: %w%s", path, err, remedy)
}

// check returns an error if the file was removed or replaced since it was opened. SQLite
// does not notice, and later writes would be lost.
func (db *DB) check() error {
	now, err := os.Stat(db.path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(db.file, now) {
		return fmt.Errorf("sqlite: %q has been removed or replaced since it was opened: open it again", db.path)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// keepMemory keeps 16 kB of the driver's allocator. SQLite allocates and frees as much
// for each full page of an index. Without this, each would be a system call: a third of
// an INSERT.
var keepMemory = sync.OnceFunc(func() {
	tls := libc.NewTLS()
	defer tls.Close()
	libc.Xmalloc(tls, 1<<14)
})

// open connects once, so that errors are reported now.
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

// Writer returns the pool with the single connection that writes. BeginTx takes the write
// lock. A goroutine in a transaction must not use the pool or call [DB.Write]: both
// deadlock.
func (db *DB) Writer() *sql.DB { return db.writer }

// Reader returns the pool of the connections that read. They see the state as of the
// beginning of their transaction.
func (db *DB) Reader() *sql.DB { return db.reader }

// Close closes the database. Waiting calls of Write return an error.
func (db *DB) Close() error {
	db.watcher.close()
	// The writer last: the last connection to close checkpoints the log.
	return errors.Join(db.reader.Close(), db.writer.Close())
}
