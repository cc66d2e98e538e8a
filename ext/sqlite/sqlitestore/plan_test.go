package sqlitestore_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What workers and commands ask all the time must not look at each message.
func TestQueriesUseAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	for _, c := range []struct {
		query, index string
		args         []any
	}{
		{"SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND at <= $2)", "weir_messages_at (queue=? AND at<?)", []any{"q", 1}},
		{"SELECT position FROM weir_messages WHERE queue = $1 AND at <= $2 ORDER BY at, position LIMIT 10", "weir_messages_at (queue=? AND at<?)", []any{"q", 1}},
		{"SELECT position FROM weir_messages WHERE queue = $1 AND position > $2 AND position <= $3 ORDER BY position LIMIT 10", "weir_messages_queue (queue=? AND rowid>? AND rowid<?)", []any{"q", 1, 2}},
		{"DELETE FROM weir_messages WHERE queue = $1 AND meta->>'id' IN ($2, $3)", "weir_messages_identity (queue=? AND <expr>=?)", []any{"q", "a", "b"}},
		{"SELECT (SELECT min(queue) FROM weir_messages WHERE queue > $1)", "(queue>?)", []any{"q"}},
	} {
		rows, err := db.Writer().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+c.query, c.args...)
		require.NoError(t, err)
		var plan string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
			plan += detail + "\n"
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
		require.Contains(t, plan, c.index, c.query)
		require.NotContains(t, plan, "TEMP B-TREE", c.query)
	}
}
