package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

// The statements of TakeInOrder find the head and the first message of a key by an index,
// and read no other message of the key.
func TestEngineTakeInOrder_UsesAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	for query, want := range map[string]struct {
		indexes []string
		args    []any
	}{
		sqlite.CandidatesDue:    {[]string{"weir_messages_at (queue=? AND at<?)"}, []any{"", "q", 1, 10}},
		sqlite.CandidatesOfKeys: {[]string{"weir_messages_head (queue=? AND <expr>=?)", "weir_messages_order (queue=? AND <expr>=?)", "INTEGER PRIMARY KEY (rowid=?)"}, []any{`["a"]`, "q", 1, 10}},
		sqlite.SelectAhead:      {[]string{"weir_messages_at (queue=? AND at=? AND rowid>?)", "weir_messages_at (queue=? AND at>?)"}, []any{"q", 1, 1, 10}},
		sqlite.SelectKeyState:   {[]string{"weir_messages_head (queue=? AND <expr>=?)", "weir_messages_order (queue=? AND <expr>=?)"}, []any{"q", "a", 1}},
		sqlite.AppointNext:      {[]string{"weir_messages_head (queue=? AND <expr>=?)", "weir_messages_order (queue=? AND <expr>=?)"}, []any{"q", "a", 1}},
		sqlite.SelectKeysSwept:  {[]string{"weir_messages_head (queue=? AND <expr>=?)", "weir_messages_key (queue=? AND <expr>=? AND at=?)", "(queue=? AND <expr>>?)"}, []any{"q", ""}},
	} {
		rows, err := db.Writer().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, want.args...)
		require.NoError(t, err)
		var plan strings.Builder
		for rows.Next() {
			var id, parent, unused int
			var detail string
			require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
			plan.WriteString(detail + "\n")
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
		for _, index := range want.indexes {
			require.Contains(t, plan.String(), index, query)
		}
		require.NotContains(t, plan.String(), "SCAN weir_messages", query)
		require.NotContains(t, strings.ReplaceAll(plan.String(), "TEMP B-TREE FOR ORDER BY\n", ""), "TEMP B-TREE", query)
	}
}

// A program of an earlier version removes a message, and does not free the messages that
// are parked behind it.
func TestEngineTakeInOrder_HeadRemovedByAnEarlierVersion(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	mock := clock.NewMock()
	s := sqlite.New(db, sqlite.WithClock(mock))
	defer s.Close()
	for _, key := range []string{"a", "b"} {
		for _, id := range []string{"1", "2", "3"} {
			require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: key + id, Key: key}}))
		}
	}
	takeOne := func() store.Leased {
		t.Helper()
		taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		return taken[0]
	}
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	_, err = db.Writer().ExecContext(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'")
	require.NoError(t, err)
	none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none, "it has looked a short time ago")
	mock.Add(10 * time.Second)
	got := takeOne()
	require.Equal(t, "a2", got.Meta.ID)
	require.NoError(t, s.Done(t.Context(), got.Lease))
	require.Equal(t, "a3", takeOne().Meta.ID)
}

func TestEngineTakeInOrder_KeysBehindAFlood(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s := sqlite.New(db)
	defer s.Close()
	storebench.KeysBehindAFlood(t, s, func() int { return parkedIn(t, db) }, func() {})
}

// parkedIn returns how many messages of a database are parked.
func parkedIn(t *testing.T, db *sqlite.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM weir_messages WHERE at = 9223372036854775806").Scan(&n))
	return n
}
