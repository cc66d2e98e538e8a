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

	// A file that fails leaves nothing.
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
