package sqliteanswers

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Cache has the answers of one function, in an SQLite database that caches may share. It
// is safe for concurrent use.
type Cache struct {
	db    *sqlite.DB
	name  string
	clock clock.Clock // sets the times of answers; replaced in tests
}

// New returns the cache with this name in db. It panics if db is nil or name is empty.
func New(db *sqlite.DB, name string) *Cache {
	if db == nil {
		panic("sqliteanswers: New: the database is nil")
	}
	if name == "" {
		panic("sqliteanswers: New: empty name")
	}
	return &Cache{db: db, name: name, clock: clock.New()}
}

// Migrations returns the SQL files that make the table: "0001_cached_answers.sql" and so
// on.
func (*Cache) Migrations() fs.FS {
	files, _ := fs.Sub(migrations, "migrations") // the name is valid
	return files
}

// Migrate makes the table, or updates it to this version. It can be called at each start.
func (c *Cache) Migrate(ctx context.Context) error {
	return sqlmigrate.Apply(ctx, c.db.Writer(), sqlmigrate.SQLite, "sqliteanswers", c.Migrations())
}

const (
	getSQL = `SELECT answer FROM weir_cached_answers WHERE cache = ?1 AND key = ?2`

	putSQL = `INSERT INTO weir_cached_answers (cache, key, answer, stored_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (cache, key) DO UPDATE SET answer = excluded.answer, stored_at = excluded.stored_at`

	deleteSQL = `DELETE FROM weir_cached_answers WHERE cache = ?1 AND key = ?2`

	collectSQL = `DELETE FROM weir_cached_answers WHERE cache = ?1 AND key IN
(SELECT key FROM weir_cached_answers WHERE cache = ?1 AND stored_at < ?2 ORDER BY stored_at LIMIT ?3)`
)

// collectStep bounds the answers that one transaction of Collect removes, so that calls
// can store answers meanwhile.
const collectStep = 1000

// Blocking is asyncop.Blocking with a cache in front of call: a call is made only if the
// cache has no answer for its element's key. The answer is stored before the result
// leaves the operator, even if the element's time has run out. If it cannot be stored,
// the attempt fails with an error that wraps the error of the database.
//
// The answer is encoded by codec.Default. Blocking panics if codec.Default refuses the
// type, or if an argument is nil.
func Blocking[IN, OUT any](
	c *Cache, key func(in IN) string, call func(ctx context.Context, in IN) (OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	if c == nil || key == nil || call == nil {
		panic("sqliteanswers: Blocking: cache, key and call must not be nil")
	}
	answers := codec.Default[OUT]()
	return asyncop.Blocking(func(ctx context.Context, in IN) (out OUT, err error) {
		hash := sha256.Sum256([]byte(key(in)))
		stored, found, err := c.get(ctx, hash)
		if err != nil {
			return out, err
		}
		if found {
			attempt, ok := ctx.Value(ctxkey.Borrow{}).(ctxkey.Borrower)
			if ok {
				attempt.Borrow()
			}
			out, err = answers.Decode(stored)
			if err != nil {
				return out, fmt.Errorf("sqliteanswers: an answer of cache %q: %w: delete it, or name the cache anew", c.name, err)
			}
			return out, nil
		}
		out, err = call(ctx, in)
		if err != nil {
			return out, err
		}
		encoded, err := answers.Append(nil, out)
		if err != nil {
			return out, fmt.Errorf("sqliteanswers: encode an answer for cache %q: %w", c.name, err)
		}
		return out, c.put(ctx, hash, encoded)
	})
}

func (c *Cache) get(ctx context.Context, hash [sha256.Size]byte) (answer []byte, found bool, err error) {
	err = c.db.Reader().QueryRowContext(ctx, getSQL, c.name, hash[:]).Scan(&answer)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("sqliteanswers: read cache %q: %w", c.name, err)
	}
	return answer, true, nil
}

// storeLimit bounds the time of storing an answer, beyond the element's time.
const storeLimit = 30 * time.Second

// put stores an answer, even if ctx ends, since it is paid for.
func (c *Cache) put(ctx context.Context, hash [sha256.Size]byte, answer []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	at := c.clock.Now().UnixMicro()
	err := c.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, putSQL, c.name, hash[:], answer, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqliteanswers: store an answer in cache %q: %w", c.name, err)
	}
	return nil
}

// Delete removes the answer for a key, if there is one.
func (c *Cache) Delete(ctx context.Context, key string) error {
	hash := sha256.Sum256([]byte(key))
	err := c.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, deleteSQL, c.name, hash[:])
		return err
	})
	if err != nil {
		return fmt.Errorf("sqliteanswers: delete from cache %q: %w", c.name, err)
	}
	return nil
}

// Collect removes the answers that are older than age, and returns how many. Each
// transaction removes up to 1,000, so calls that store answers hardly wait.
func (c *Cache) Collect(ctx context.Context, age time.Duration) (removed int64, err error) {
	before := c.clock.Now().Add(-age).UnixMicro()
	for {
		var n int64
		err := c.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
			result, err := tx.ExecContext(ctx, collectSQL, c.name, before, collectStep)
			if err != nil {
				return err
			}
			n, err = result.RowsAffected()
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("sqliteanswers: collect cache %q: %w", c.name, err)
		}
		removed += n
		if n < collectStep {
			return removed, nil
		}
	}
}
