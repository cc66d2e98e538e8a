//go:build unix

package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// BenchmarkStore has its server on the same machine, without fsync.
func BenchmarkStore(b *testing.B) {
	server := pgtest.Start(b)
	databases := 0
	storebench.Run(b, func(b *testing.B) store.Store {
		databases++
		name := fmt.Sprintf("bench_%d", databases)
		server.Exec("CREATE DATABASE " + name)
		pool, err := pgxpool.New(b.Context(), strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1))
		require.NoError(b, err)
		b.Cleanup(pool.Close)
		s := postgres.New(pool)
		require.NoError(b, s.Migrate(b.Context()))
		b.Cleanup(func() { assert.NoError(b, s.Close()) })
		return s
	})
}
