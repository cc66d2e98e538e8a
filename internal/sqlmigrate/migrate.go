// Package sqlmigrate applies the SQL files that make weir's tables. The files are plain
// SQL and numbered ("0001_tables.sql"), so that a user's own migrator can run them
// instead.
package sqlmigrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/weirflow/weir/internal/guard"
)

// Dialect is a kind of database.
type Dialect int

// Dialects differ in how they exclude concurrent migrations.
const (
	SQLite     Dialect = iota // by a transaction that writes
	PostgreSQL                // by an advisory lock
)

const table = `CREATE TABLE IF NOT EXISTS weir_migrations (
	component TEXT NOT NULL,
	version   INTEGER NOT NULL,
	PRIMARY KEY (component, version)
)`

// lockID is the advisory lock of all components: "weir" in ASCII.
const lockID = 0x77656972

// Apply runs the files that were not applied to db for this component, in order of their
// numbers and in one transaction. Concurrent calls, in any process, wait for each other.
func Apply(ctx context.Context, db *sql.DB, d Dialect, component string, files fs.FS) error {
	_, err := Ensure(ctx, db, d, component, files)
	return err
}

// Ensure is Apply, and returns the names of the files that it has run. If all files were
// applied before, it only reads. It refuses a database to which a later version of weir
// has applied more files, unless their first line begins with "-- compatible". If the
// user may not run the files, the error contains the statements.
func Ensure(ctx context.Context, db *sql.DB, d Dialect, component string, files fs.FS) (made []string, err error) {
	made, err = ensure(ctx, db, d, component, files)
	if err != nil {
		return nil, fmt.Errorf("migrations (component %q in the table weir_migrations): %w", component, err)
	}
	return made, nil
}

// CheckVersion returns an error if a later version of weir has made the component's
// tables. Missing or older tables are not an error.
func CheckVersion(ctx context.Context, db *sql.DB, component string, files fs.FS) error {
	all, err := read(component, files)
	if err != nil {
		return err
	}
	_, err = pending(ctx, db, component, all)
	if lacksTable(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("migrations (component %q in the table weir_migrations): %w", component, err)
	}
	return nil
}

// lacksTable reports whether a statement names a missing table.
func lacksTable(err error) bool {
	return err != nil && (sqlState(err) == "42P01" || strings.Contains(err.Error(), "no such table: "))
}

func ensure(ctx context.Context, db *sql.DB, d Dialect, component string, files fs.FS) (made []string, err error) {
	all, err := read(component, files)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("no files")
	}
	rest, err := pending(ctx, db, component, all)
	_, isTooNew := errors.AsType[tooNewError](err)
	switch {
	case sqlState(err) == insufficientPrivilege: // the table exists, and belongs to another user
		return nil, guard.MarkPermanent(fmt.Errorf("%w: the tables exist, and %w", err, lacksRights(tablesOf(all))))
	case isTooNew:
		return nil, err
	case err != nil: // the table does not exist, or the error returns below
		rest = all
	case len(rest) == 0:
		return nil, nil
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	made, err = applyIn(ctx, tx, d, component, all)
	if err != nil {
		return nil, explainRights(errors.Join(err, tx.Rollback()), len(rest) == len(all), rest)
	}
	return made, tx.Commit()
}

// compatible is the first line of a file that programs of earlier versions need not know.
// Such a file does not count for the component's version.
const compatible = "-- compatible"

type file struct {
	name      string
	number    int
	component string // of its row in weir_migrations
	text      string
}

// read returns the files of a component, in order.
func read(component string, files fs.FS) (all []file, err error) {
	names, err := fs.Glob(files, "*.sql") // sorted by name
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		number, err := versionOf(name)
		if err != nil {
			return nil, err
		}
		if number != i+1 {
			return nil, fmt.Errorf("%s is the file number %d", name, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		f := file{name, number, component, string(text)}
		if strings.HasPrefix(f.text, compatible) {
			f.component = component + " compatible"
		}
		all = append(all, f)
	}
	return all, nil
}

// pending returns the files that were not applied. It returns an error if a later version
// of weir has applied files that programs must know.
func pending(ctx context.Context, q querier, component string, all []file) (rest []file, err error) {
	versions := map[string]int{}
	known := 0
	for _, f := range all {
		version, isRead := versions[f.component]
		if !isRead {
			version, err = versionIn(ctx, q, f.component)
			if err != nil {
				return nil, err
			}
			versions[f.component] = version
		}
		if f.component == component {
			known = f.number
		}
		if f.number > version {
			rest = append(rest, f)
		}
	}
	if versions[component] > known {
		return nil, tooNew(versions[component], known)
	}
	return rest, nil
}

// tooNewError is the error of a database that a later version of weir has changed.
type tooNewError struct{ version, known int }

func (e tooNewError) Error() string {
	return fmt.Sprintf("the database has version %d, and this program knows %d: it needs a later version of weir", e.version, e.known)
}

func tooNew(version, known int) error { return guard.MarkPermanent(tooNewError{version, known}) }

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func versionIn(ctx context.Context, q querier, component string) (version int, err error) {
	err = q.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM weir_migrations WHERE component = $1", component).Scan(&version)
	return version, err
}

const insufficientPrivilege = "42501"

// lacksRights returns an error with the GRANT statements. Identity columns require no
// rights on a sequence.
func lacksRights(tables []string) error {
	return fmt.Errorf("this user lacks rights on them: let their owner run GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO <user>; "+
		"GRANT SELECT ON weir_migrations TO <user>; and, if need be, GRANT USAGE ON SCHEMA <schema> TO <user>", strings.Join(tables, ", "))
}

var createTable = regexp.MustCompile(`CREATE TABLE IF NOT EXISTS (\w+)`)

func tablesOf(all []file) (tables []string) {
	for _, f := range all {
		for _, match := range createTable.FindAllStringSubmatch(f.text, -1) {
			tables = append(tables, match[1])
		}
	}
	return tables
}

// explainRights adds the statements of unapplied files to an error that the user may not
// run them, and the table of migrations if isNew is true. It returns other errors
// unchanged.
func explainRights(err error, isNew bool, rest []file) error {
	text := err.Error()
	if sqlState(err) != insufficientPrivilege && !strings.Contains(text, "readonly database") {
		return err
	}
	var b strings.Builder
	if isNew {
		b.WriteString(table + ";\n")
	}
	for _, f := range rest {
		fmt.Fprintf(&b, "%s\nINSERT INTO weir_migrations (component, version) VALUES ('%s', %d) ON CONFLICT DO NOTHING;\n",
			strings.TrimSpace(f.text), f.component, f.number)
	}
	return guard.MarkPermanent(fmt.Errorf("%w: this user may not make the tables: let a user who may make them run these statements:\n%s", err, &b))
}

func applyIn(ctx context.Context, tx *sql.Tx, d Dialect, component string, all []file) (made []string, err error) {
	if d == PostgreSQL {
		// Lock before creating the table: concurrent creations fail, even with IF NOT
		// EXISTS.
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock("+strconv.Itoa(lockID)+")"); err != nil {
			return nil, err
		}
	}
	if _, err := tx.ExecContext(ctx, table); err != nil {
		return nil, err
	}
	if d == SQLite {
		// Lock before reading: CREATE TABLE does not lock the database if the table
		// exists.
		if _, err := tx.ExecContext(ctx, "DELETE FROM weir_migrations WHERE false"); err != nil {
			return nil, err
		}
	}
	rest, err := pending(ctx, tx, component, all)
	if err != nil {
		return nil, err
	}
	for _, f := range rest {
		err := applyFile(ctx, tx, f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		made = append(made, f.name)
	}
	return made, nil
}

func applyFile(ctx context.Context, tx *sql.Tx, f file) error {
	if _, err := tx.ExecContext(ctx, f.text); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO weir_migrations (component, version) VALUES ($1, $2)", f.component, f.number)
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

// Explain adds a remedy to err if it knows one: call migrate if tables are missing, let
// the owner grant rights, or turn off prepared statements, which do not last behind a
// pooler of transactions. It marks errors that a repetition cannot cure as permanent:
// missing tables, and statements that PostgreSQL refuses because of the user, the
// database or the syntax.
func Explain(err error, migrate string, tables ...string) error {
	if err == nil {
		return nil
	}
	text, what := err.Error(), "no such table: " // SQLite does not have a code for it
	state := sqlState(err)
	switch {
	case state == "42P01": // undefined_table, whose text is in the server's language
		what = ""
	case state == "42703": // undefined_column: see below
	case state == "26000", state == "42P05": // a prepared statement is missing, or exists already
		return fmt.Errorf("%w: prepared statements do not last, as behind a pooler of transactions (PgBouncer): "+
			"add default_query_exec_mode=exec to the URL, or set DefaultQueryExecMode of the pool to pgx.QueryExecModeExec", err)
	case state == insufficientPrivilege && len(tables) > 0:
		return guard.MarkPermanent(fmt.Errorf("%w: if the tables belong to another user, %w", err, lacksRights(tables)))
	case strings.HasPrefix(state, "28"), strings.HasPrefix(state, "3D"), strings.HasPrefix(state, "42"):
		return guard.MarkPermanent(err)
	}
	advice := ": call " + migrate + ", which makes the tables"
	if strings.Contains(text, "no such column: ") || state == "42703" { // tables of an older version
		return guard.MarkPermanent(fmt.Errorf("%w%s", err, advice))
	}
	for _, table := range tables {
		if strings.Contains(text, what+table) && !strings.Contains(text, advice) {
			return guard.MarkPermanent(fmt.Errorf("%w%s", err, advice))
		}
	}
	return err
}

// StateError is an error of a PostgreSQL driver, with a SQLSTATE of five characters.
type StateError interface {
	error
	SQLState() string
}

// sqlState returns a PostgreSQL error's code, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[StateError](err); ok {
		return e.SQLState()
	}
	return ""
}
