//go:build unix

package pgstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres/pgstore"
	"github.com/weirflow/weir/internal/storebench"
)

func TestManyMessages(t *testing.T) {
	pool := connect(t, places(t)(t))
	require.NoError(t, pgstore.Migrate(t.Context(), pool))
	s := pgstore.New(pool)
	defer s.Close()
	storebench.Many(t, s)
}
