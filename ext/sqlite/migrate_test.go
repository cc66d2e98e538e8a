package sqlite

import (
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/sqlmigrate"
)

func TestMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	var dbs [2]*DB
	for i := range dbs {
		var err error
		dbs[i], err = OpenDB(t.Context(), path)
		require.NoError(t, err)
		defer dbs[i].Close()
	}
	files := fstest.MapFS{"0001_a.sql": {Data: []byte("CREATE TABLE a (x INTEGER); -- one\nCREATE TABLE b (x INTEGER);\n")}}
	apply := func(db *DB) error {
		return sqlmigrate.Apply(t.Context(), db.Writer(), sqlmigrate.SQLite, "test", files)
	}
	var wg sync.WaitGroup
	for i := range 8 { // several processes at once
		wg.Go(func() { assert.NoError(t, apply(dbs[i%2])) })
	}
	wg.Wait()
	files["0002_b.sql"] = &fstest.MapFile{Data: []byte("INSERT INTO a (x) VALUES (1)")}
	require.NoError(t, apply(dbs[0]))
	require.NoError(t, apply(dbs[1]))
	var n int
	require.NoError(t, dbs[0].Reader().QueryRow("SELECT count(*) FROM a").Scan(&n))
	assert.Equal(t, 1, n)

	// A file that fails has no effect.
	files["0003_c.sql"] = &fstest.MapFile{Data: []byte("INSERT INTO a (x) VALUES (2); nonsense")}
	assert.ErrorContains(t, apply(dbs[0]), `migrations (component "test" in the table weir_migrations): 0003_c.sql: `)
	require.NoError(t, dbs[0].Reader().QueryRow("SELECT count(*) FROM a").Scan(&n))
	assert.Equal(t, 1, n)
	delete(files, "0003_c.sql")
	files["0004_d.sql"] = &fstest.MapFile{}
	assert.ErrorContains(t, apply(dbs[0]), "0004_d.sql is the file number 3")
	files["x.sql"] = &fstest.MapFile{}
	delete(files, "0004_d.sql")
	assert.ErrorContains(t, apply(dbs[0]), "x.sql is not named like 0001_tables.sql")
}

// Law W4: the index of law W5 does not raise the version of the tables, so a program of
// the version before may start beside it.
func TestMigrate_CompatibleFile(t *testing.T) {
	db, err := OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for range 2 {
		require.NoError(t, New(db).Migrate(t.Context()))
		var version, compatible int
		require.NoError(t, db.Reader().QueryRowContext(t.Context(),
			"SELECT max(version) FROM weir_migrations WHERE component = 'sqlitestore'").Scan(&version))
		require.NoError(t, db.Reader().QueryRowContext(t.Context(),
			"SELECT max(version) FROM weir_migrations WHERE component = 'sqlitestore compatible'").Scan(&compatible))
		require.Equal(t, []int{6, 9}, []int{version, compatible})
	}
	_, err = db.Writer().ExecContext(t.Context(), "INSERT INTO weir_migrations (component, version) VALUES ('sqlitestore', 10)")
	require.NoError(t, err)
	require.ErrorContains(t, New(db).Migrate(t.Context()), "the database has version 10, and this program knows 6")
}
