//go:build unix

package pgtest

import (
	"database/sql"
	"sync"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/sqlmigrate"
)

func TestMigrate(t *testing.T) {
	db, err := sql.Open("pgx", Start(t).URL())
	require.NoError(t, err)
	defer db.Close()
	files := fstest.MapFS{"0001_a.sql": {Data: []byte("CREATE TABLE a (x BIGINT); -- one\nCREATE TABLE b (x BIGINT);\n")}}
	apply := func() error {
		return sqlmigrate.Apply(t.Context(), db, sqlmigrate.PostgreSQL, "test", files)
	}
	var wg sync.WaitGroup
	for range 8 { // several processes at once
		wg.Go(func() { assert.NoError(t, apply()) })
	}
	wg.Wait()
	files["0002_b.sql"] = &fstest.MapFile{Data: []byte("INSERT INTO a (x) VALUES (1)")}
	require.NoError(t, apply())
	require.NoError(t, apply())
	files["0003_c.sql"] = &fstest.MapFile{Data: []byte("INSERT INTO a (x) VALUES (2); nonsense")}
	assert.ErrorContains(t, apply(), `migrations (component "test" in the table weir_migrations): 0003_c.sql: `)
	var n int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM a").Scan(&n))
	assert.Equal(t, 1, n)
}
