package storesql_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/internal/storesql"
)

// Keys are likely to be full for a second after a take has found full keys, in its queue.
func TestFullKeys(t *testing.T) {
	var full storesql.FullKeys
	now := time.Unix(1000, 0)
	require.False(t, full.AreLikely("q", now), "before the first take")
	full.Note("q", now)
	require.True(t, full.AreLikely("q", now))
	require.False(t, full.AreLikely("q-retry-1", now), "another queue")
	require.True(t, full.AreLikely("q", now.Add(time.Second-1)))
	require.False(t, full.AreLikely("q", now.Add(time.Second)))
	full.Note("q", now.Add(time.Minute))
	require.True(t, full.AreLikely("q", now.Add(time.Minute)))
}
