// Package sqlmigrate applies the SQL files with which packages of weir make their tables. They are plain and numbered
// ("0001_tables.sql"), so that a user's own migrator can run them instead.
package sqlmigrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/weirflow/weir/internal/permanent"
)

// Dialect is a kind of database.
type Dialect int

// The kinds differ in how processes that migrate at once are kept apart.
const (
	SQLite     Dialect = iota // a transaction that writes excludes others
	PostgreSQL                // an advisory lock does
)

const table = `CREATE TABLE IF NOT EXISTS weir_migrations (
	component TEXT NOT NULL,
	version   INTEGER NOT NULL,
	PRIMARY KEY (component, version)
)`

// lockID is the advisory lock of all components: "weir" in ASCII.
const lockID = 0x77656972

// Apply runs the files, in order of their numbers, that were not applied to db for this
// component, all in one transaction. Processes that do so at once wait for each other.
func Apply(ctx context.Context, db *sql.DB, d Dialect, component string, files fs.FS) error {
	if err := apply(ctx, db, d, component, files); err != nil {
		return fmt.Errorf("migrations of %s: %w", component, err)
	}
	return nil
}

func apply(ctx context.Context, db *sql.DB, d Dialect, component string, files fs.FS) error {
	names, err := fs.Glob(files, "*.sql") // sorted by name
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no files")
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = applyIn(ctx, tx, d, component, files, names)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func applyIn(ctx context.Context, tx *sql.Tx, d Dialect, component string, files fs.FS, names []string) error {
	if d == PostgreSQL {
		// Before the table: two at once that create one fail, even with IF NOT EXISTS.
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock("+strconv.Itoa(lockID)+")"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, table); err != nil {
		return err
	}
	if d == SQLite {
		// The table may be there, which takes no lock: one is taken before anything is read.
		if _, err := tx.ExecContext(ctx, "DELETE FROM weir_migrations WHERE false"); err != nil {
			return err
		}
	}
	for i, name := range names {
		version, err := versionOf(name)
		if err != nil {
			return err
		}
		if version != i+1 {
			return fmt.Errorf("%s is the file number %d", name, i+1)
		}
		if err := applyFile(ctx, tx, component, version, files, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func applyFile(ctx context.Context, tx *sql.Tx, component string, version int, files fs.FS, name string) error {
	var done int
	// Both databases know $1; component and version are ours.
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM weir_migrations WHERE component = $1 AND version = $2", component, version).Scan(&done)
	if err != nil || done > 0 {
		return err
	}
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, string(text)); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO weir_migrations (component, version) VALUES ($1, $2)", component, version)
	return err
}

// versionOf returns 7 for "0007_name.sql".
func versionOf(name string) (int, error) {
	digits, _, ok := strings.Cut(name, "_")
	version, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s is not named like 0001_tables.sql", name)
	}
	return version, nil
}

// Explain returns err, and says that migrate makes the tables if err is that of a statement for which one of them is missing. It marks
// what no repetition makes go away (package permanent): that, and what PostgreSQL refuses to this user, to this database or by its syntax.
func Explain(err error, migrate string, tables ...string) error {
	if err == nil {
		return nil
	}
	text, what := err.Error(), "no such table: " // SQLite has no code for it
	state := sqlState(err)
	switch {
	case state == "42P01": // undefined_table, whose text is in the server's language
		what = ""
	case state == "42703": // undefined_column: see below
	case strings.HasPrefix(state, "28"), strings.HasPrefix(state, "3D"), strings.HasPrefix(state, "42"):
		return permanent.Mark(err)
	}
	advice := ": call " + migrate + ", which makes the tables"
	if strings.Contains(text, "no such column: ") || state == "42703" { // those of an older version
		return permanent.Mark(fmt.Errorf("%w%s", err, advice))
	}
	for _, table := range tables {
		if strings.Contains(text, what+table) && !strings.Contains(text, advice) {
			return permanent.Mark(fmt.Errorf("%w%s", err, advice))
		}
	}
	return err
}

// sqlState returns the code of an error of PostgreSQL, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}
