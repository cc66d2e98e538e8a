//go:build unix

package docs_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/postgrestest"
)

func TestRecipes_PostgreSQL(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), postgrestest.Start(t).URL())
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), "CREATE TABLE airports (key TEXT PRIMARY KEY, name TEXT NOT NULL)")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "INSERT INTO airports VALUES ('lhr', 'Heathrow'), ('cdg', 'Charles de Gaulle')")
	require.NoError(t, err)
	var names []string
	err = rowsOf(pool, []string{"lhr", "absent", "cdg"}, func(name string) { names = append(names, name) })
	require.NoError(t, err)
	assert.Equal(t, []string{"Heathrow", "Charles de Gaulle"}, names)
}
