package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// The messages that an earlier version of a program has left in layers and behind others
// of their key.
func TestEngine_MessagesOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	for name, isOrdered := range map[string]bool{"in order": true, "in any order": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
			require.NoError(t, err)
			defer e.Close()
			storebench.Earlier(t, e, isOrdered)
		})
	}
}
