//go:build unix

package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// The messages that an earlier version of a program has left in layers and behind others
// of their key.
func TestEngine_MessagesOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	e, err := postgres.Open(t.Context(), pgtest.Start(t).URL())
	require.NoError(t, err)
	defer e.Close()
	for name, isOrdered := range map[string]bool{"in order": true, "in any order": false} {
		t.Run(name, func(t *testing.T) { storebench.Earlier(t, e, isOrdered) })
	}
}
