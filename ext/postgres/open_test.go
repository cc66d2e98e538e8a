package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
)

// The URL of another database is named by its scheme, without its password.
func TestOpen_OtherScheme(t *testing.T) {
	_, err := postgres.Open(t.Context(), "mysql://u:s3cr3t@host/shop")
	require.ErrorContains(t, err, `the URL of the database has the scheme "mysql": it must be postgres://USER:PASSWORD@HOST/DATABASE`)
	require.NotContains(t, err.Error(), "s3cr3t")
}
