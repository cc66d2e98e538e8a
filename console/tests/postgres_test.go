//go:build unix

package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/postgrestest"
)

func init() { asked["postgres"] = onPostgreSQL }

// onPostgreSQL returns an engine on a server that the test starts. Without its programs
// the test is skipped, but not in CI.
func onPostgreSQL(t *testing.T) store.Keeper {
	t.Helper()
	e, err := postgres.Open(t.Context(), postgrestest.Start(t).URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}
