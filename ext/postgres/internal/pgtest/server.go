//go:build unix

package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/postgrestest"
)

// Server is a PostgreSQL server. It belongs to the goroutine of its test.
type Server struct {
	*postgrestest.Server
	t testing.TB
}

// Start makes a database cluster and starts its server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return &Server{postgrestest.Start(t), t}
}

// Shared returns a server that all tests of the process share, for tests that neither
// stop nor freeze it. TestMain must call [StopShared].
func Shared(t testing.TB) *Server {
	t.Helper()
	return &Server{postgrestest.Shared(t), t}
}

// StopShared stops the server of Shared, if it runs.
func StopShared() { postgrestest.StopShared() }

// Exec runs statements.
func (s *Server) Exec(statements ...string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.URL())
	require.NoError(s.t, err)
	defer conn.Close(context.WithoutCancel(s.t.Context()))
	for _, sql := range statements {
		_, err := conn.Exec(s.t.Context(), sql)
		require.NoError(s.t, err, sql)
	}
}

// Counts returns the rows of a query for a text and a number.
func (s *Server) Counts(sql string) map[string]int {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.URL())
	require.NoError(s.t, err)
	defer conn.Close(context.WithoutCancel(s.t.Context()))
	rows, err := conn.Query(s.t.Context(), sql)
	require.NoError(s.t, err)
	counts := map[string]int{}
	var key string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error {
		counts[key] = n
		return nil
	})
	require.NoError(s.t, err)
	return counts
}
