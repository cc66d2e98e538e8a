package golden

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Database is a part of a database written by some version of weir. A script has the
// statements that create its tables, and their rows.
type Database struct {
	DB     *sql.DB
	Files  fs.FS // migrations
	Tables []string
	Postgr bool // PostgreSQL instead of SQLite
}

const migrationsTable = "CREATE TABLE IF NOT EXISTS weir_migrations (component TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (component, version));\n"

// Script returns the script of the database's present state.
func (d *Database) Script(tb testing.TB) []byte {
	tb.Helper()
	var b strings.Builder
	b.WriteString(migrationsTable)
	names, err := fs.Glob(d.Files, "*.sql")
	require.NoError(tb, err)
	for _, name := range names {
		statements, err := fs.ReadFile(d.Files, name)
		require.NoError(tb, err)
		fmt.Fprintf(&b, "\n-- %s\n%s", name, statements)
	}
	b.WriteString("\n-- rows\n")
	for _, table := range append(d.Tables, "weir_migrations") {
		d.rows(tb, &b, table)
	}
	return []byte(b.String())
}

func (d *Database) rows(tb testing.TB, b *strings.Builder, table string) {
	tb.Helper()
	rows, err := d.DB.QueryContext(tb.Context(), "SELECT * FROM "+table+" ORDER BY 1, 2")
	require.NoError(tb, err)
	defer func() { require.NoError(tb, rows.Close()) }()
	columns, err := rows.ColumnTypes()
	require.NoError(tb, err)
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name()
	}
	overriding := ""
	if d.Postgr && table != "weir_migrations" {
		overriding = " OVERRIDING SYSTEM VALUE"
	}
	for rows.Next() {
		values := make([]any, len(columns))
		literals := make([]string, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		require.NoError(tb, rows.Scan(values...))
		for i, v := range values {
			literals[i] = d.literal(tb, *v.(*any), columns[i].DatabaseTypeName())
		}
		fmt.Fprintf(b, "INSERT INTO %s (%s)%s VALUES\n\t(%s)\n\tON CONFLICT DO NOTHING;\n", table, strings.Join(names, ", "), overriding, strings.Join(literals, ", "))
	}
	require.NoError(tb, rows.Err())
}

func (d *Database) literal(tb testing.TB, v any, kind string) string {
	tb.Helper()
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	switch v := v.(type) {
	case nil:
		return "NULL"
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		return strconv.FormatBool(v)
	case string:
		return quoted(v)
	case time.Time:
		return quoted(v.UTC().Format("2006-01-02 15:04:05.999999Z"))
	case []byte:
		switch {
		case !d.Postgr:
			return "X'" + hex.EncodeToString(v) + "'"
		case kind == "BYTEA":
			return `'\x` + hex.EncodeToString(v) + "'"
		}
		return quoted(string(v)) // JSONB
	}
	require.Fail(tb, "no literal", "%T of %s", v, kind)
	return ""
}

// Run runs a script on an empty database.
func Run(ctx context.Context, tb testing.TB, db *sql.DB, script []byte) {
	tb.Helper()
	_, err := db.ExecContext(ctx, string(script))
	require.NoError(tb, err)
}
