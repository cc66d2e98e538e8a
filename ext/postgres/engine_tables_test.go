//go:build unix

package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
)

func TestEngine_WithoutTables(t *testing.T) {
	queues := postgres.New(connect(t, schemas(t)(t)))
	defer func() { require.NoError(t, queues.Close()) }()
	storebench.WithoutTables(t, queues, "postgres.Engine.Migrate")
}
