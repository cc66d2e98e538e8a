//go:build unix

package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
)

func TestEngine_ManyMessages(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	storebench.Many(t, s)
}

func TestEngine_TenantThatFloods(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	storebench.Fair(t, s)
}

func TestEngine_BadEndpoints(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	storebench.BadEndpoints(t, s)
}

func TestEngineCountKeys_ManyMessages(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	storebench.Keys(t, s)
}

func TestEngineTakeInOrder_BehindAFlood(t *testing.T) {
	urls := schemas(t)
	storebench.InOrder(t, func() (storebench.OrderedEngine, func() int) {
		pool := connect(t, urls(t))
		require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		s := postgres.New(pool)
		t.Cleanup(func() { s.Close() })
		return s, func() int { return parkedIn(t, pool) }
	})
}
