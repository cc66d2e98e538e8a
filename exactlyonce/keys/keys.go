package keys

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

// Dialect is a kind of database.
type Dialect int

// The supported databases.
const (
	SQLite Dialect = iota
	PostgreSQL
)

//go:embed migrations
var migrations embed.FS

// Migrations returns the SQL files that create the tables, "0001_keys.sql" and so on.
func (d Dialect) Migrations() fs.FS {
	files, _ := fs.Sub(migrations, "migrations/"+[...]string{SQLite: "sqlite", PostgreSQL: "postgresql"}[d]) // the name is valid
	return files
}

const component = "keys"

// Migrate creates the tables, or updates them to this version. Call it at each start.
func (k *Keys) Migrate(ctx context.Context) error {
	dialect := [...]sqlmigrate.Dialect{SQLite: sqlmigrate.SQLite, PostgreSQL: sqlmigrate.PostgreSQL}[k.dialect]
	return sqlmigrate.Apply(ctx, k.db, dialect, component, k.dialect.Migrations())
}

// CheckVersion returns an error if a later version of weir has made the tables, but not
// if they are missing or older.
func (k *Keys) CheckVersion(ctx context.Context) error {
	return sqlmigrate.CheckVersion(ctx, k.db, component, k.dialect.Migrations())
}

// Config are the settings of [Keys]. The zero value has the defaults.
type Config struct {
	// LockTimeout is how long a step may take before another run may take over. Each step
	// restarts it, and the step's context ends with it. Default 90 s.
	LockTimeout time.Duration
	// Retention is how long a request is kept after it was finished. Then its key belongs
	// to a new request, even before [Keys.Reap]. An unfinished request stays until it is
	// finished, or until [Keys.End]. Default 24 h.
	Retention time.Duration
	// CompleteAfter is how long an unfinished request must rest before Complete runs it,
	// so that its client can repeat it first. Each run adds the same time. Complete gives
	// up Retention after the arrival of the request. Default 5 minutes.
	CompleteAfter time.Duration
	// Clock is for all these times. Default: the wall clock.
	Clock clock.Clock
	// Logger logs requests that could not be completed or unlocked. Default
	// slog.Default().
	Logger *slog.Logger
}

// Keys are the idempotency keys and their requests in a database. They are safe for
// concurrent use.
type Keys struct {
	db      *sql.DB
	dialect Dialect
	config  Config

	counters counters

	mu         sync.Mutex
	operations map[string]*Operation
}

// New returns the keys in db, whose tables [Keys.Migrate] creates. It panics if db is
// nil, the dialect is unknown or a duration is negative.
func New(db *sql.DB, d Dialect, c Config) *Keys {
	guard.RefuseNil("keys: New", "db", db)
	if d != SQLite && d != PostgreSQL {
		panic(fmt.Sprintf("keys: New: dialect %d is unknown", d))
	}
	if c.LockTimeout < 0 || c.Retention < 0 || c.CompleteAfter < 0 {
		panic(fmt.Sprintf("keys: New: LockTimeout is %v, Retention %v, CompleteAfter %v", c.LockTimeout, c.Retention, c.CompleteAfter))
	}
	for _, set := range []struct {
		d  *time.Duration
		to time.Duration
	}{{&c.LockTimeout, 90 * time.Second}, {&c.Retention, 24 * time.Hour}, {&c.CompleteAfter, 5 * time.Minute}} {
		if *set.d == 0 {
			*set.d = set.to
		}
	}
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	c.Logger = guard.Logger(c.Logger)
	return &Keys{db: db, dialect: d, config: c, operations: map[string]*Operation{}}
}

// Operation is a handler with a name.
type Operation struct {
	keys    *Keys
	name    string
	handler func(ctx context.Context, run *Run) (exactlyonce.Response, error)
}

// Operation registers a handler, which completes a request in steps. A response that it
// returns without an error is stored, unless it has called [Run.Finish]. With an error
// the request stays unfinished, and the response, if it has a status, is sent but not
// stored.
//
// The name, of 1 to 50 bytes, must stay the same while any of its requests may be
// unfinished. Operation panics if the name is taken or invalid, or handler is nil.
func (k *Keys) Operation(name string, handler func(ctx context.Context, run *Run) (exactlyonce.Response, error)) *Operation {
	if handler == nil {
		panic("keys: Operation: handler is nil")
	}
	if name == "" || len(name) > maxPoint {
		panic(fmt.Sprintf("keys: Operation: name %q does not have 1 to %d bytes", name, maxPoint))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.operations[name] != nil {
		panic(fmt.Sprintf("keys: Operation: name %q is taken", name))
	}
	o := &Operation{keys: k, name: name, handler: handler}
	k.operations[name] = o
	return o
}

func (k *Keys) operation(name string) *Operation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.operations[name]
}
