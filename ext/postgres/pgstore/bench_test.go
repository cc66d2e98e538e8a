//go:build unix

package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgstore"
	"github.com/weirflow/weir/internal/storebench"
)

// BenchmarkStore has its server on the same machine, without fsync.
func BenchmarkStore(b *testing.B) {
	storebench.Run(b, func(b *testing.B) store.Store {
		pool, err := pgxpool.New(b.Context(), pgtest.Start(b).URL())
		require.NoError(b, err)
		b.Cleanup(pool.Close)
		require.NoError(b, pgstore.Migrate(b.Context(), pool))
		return pgstore.New(pool)
	})
}
