package sqlite_test

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// Statements that workers and commands run all the time must not scan all messages.
func TestQueriesUseAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	byID, _, args, err := sqlite.Page("q", &store.Filter{IDs: []string{"a"}}, store.Page{Max: 1})
	require.NoError(t, err)
	byKey, _, keyArgs, err := sqlite.Page("q", &store.Filter{Key: "a"}, store.Page{Max: 1})
	require.NoError(t, err)
	byNextKey, keyOrder, nextKeyArgs, err := sqlite.Page("q", &store.Filter{Key: "a"}, store.Page{Max: 1, After: 1})
	require.NoError(t, err)
	byPage, order, pageArgs, err := sqlite.Page("q", &store.Filter{Error: "refused"}, store.Page{Max: 1})
	require.NoError(t, err)
	for _, c := range []struct {
		query, index string
		args         []any
	}{
		{"SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND at <= $2)", "weir_messages_at (queue=? AND at<?)", []any{"q", 1}},
		{sqlite.PositionsDue, "weir_messages_at (queue=? AND at<?)", []any{"", "q", 1, 10}},
		{sqlite.PositionsFree, "INTEGER PRIMARY KEY (rowid=?)", []any{"[1]", "q", 1, 1}},
		{"SELECT position FROM weir_messages WHERE queue = $1 AND position > $2 AND position <= $3 ORDER BY position LIMIT 10", "weir_messages_queue (queue=? AND rowid>? AND rowid<?)", []any{"q", 1, 2}},
		{"DELETE FROM weir_messages WHERE queue = $1 AND meta->>'id' IN ($2, $3)", "weir_messages_identity (queue=? AND <expr>=?)", []any{"q", "a", "b"}},
		{"SELECT position FROM weir_messages" + byID, "weir_messages_identity (queue=? AND <expr>=?)", args},
		{"SELECT position FROM weir_messages" + byKey + keyOrder, "weir_messages_order (queue=? AND <expr>=? AND rowid>? AND rowid<?)", keyArgs},
		{"SELECT position FROM weir_messages" + byNextKey + keyOrder, "weir_messages_order (queue=? AND <expr>=? AND rowid>? AND rowid<?)", nextKeyArgs},
		{"SELECT position FROM weir_messages" + byPage + order, "weir_messages_queue (queue=? AND rowid>? AND rowid<?)", pageArgs},
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

// The search for the next keys of a round does not read the messages of other keys.
func TestEngineTakeByKey_UsesAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	for query, args := range map[string][]any{
		sqlite.SelectDueKeys:   {"", "q", 1, 10, "[]"},
		sqlite.SelectKeysBelow: {"", "q", 1, 10, "[]", 5, "q"},
		sqlite.PositionsOfKeys: {`["a"]`, "q", 1, 10},
	} {
		rows, err := db.Writer().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
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
		require.Contains(t, plan, "weir_messages_key (queue=? AND <expr>", plan)
		require.NotContains(t, plan, "SCAN weir_messages", plan)
		require.NotContains(t, plan, "SCAN m", plan)
		require.NotContains(t, plan, "weir_messages_at", plan)
	}
}

// The leases of a key are counted in the index of the leases with a limit, which has no
// others.
func TestEngineTakeByKey_CountsInAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	for query, args := range map[string][]any{
		sqlite.SelectKeysBelow: {"", "q", 1, 10, "[]", 5, "q"},
		sqlite.SelectInFlight:  {`["a"]`, "q", 1},
	} {
		rows, err := db.Writer().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
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
		require.Contains(t, plan, "SEARCH f USING INDEX weir_messages_flight (<expr>=?)", plan)
		require.NotContains(t, plan, "SCAN f", plan)
	}
	s := sqlite.New(db)
	defer s.Close()
	for _, queue := range []string{"q", "q-retry-1", "q-retry-2"} {
		for i := range 4 {
			require.NoError(t, s.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: strconv.Itoa(i), Key: "a"}}))
		}
	}
	inIndex := func() (n int) {
		t.Helper()
		require.NoError(t, db.Reader().QueryRowContext(t.Context(),
			"SELECT count(*) FROM weir_messages INDEXED BY weir_messages_flight WHERE limited = fence AND leased IS NOT NULL").Scan(&n))
		return n
	}
	_, err := s.Take(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	_, _, err = s.TakeByKey(t.Context(), "q-retry-1", store.KeyRound{Each: 1}, 1, time.Minute)
	require.NoError(t, err)
	require.Zero(t, inIndex(), "messages leased without a limit")
	taken, _, err := s.TakeByKey(t.Context(), "q-retry-2", store.KeyRound{Each: 2, Limit: 2}, 2, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	require.Equal(t, 2, inIndex(), "messages leased with a limit")
	require.NoError(t, s.Done(t.Context(), taken[0].Lease))
	require.NoError(t, s.Release(t.Context(), 0, taken[1].Lease))
	require.Zero(t, inIndex(), "messages that are done or released")
}

// A count by key reads the index of keys for each queue, and no message.
func TestEngineCountKeys_UsesAnIndex(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	statement, args := sqlite.SelectKeyCounts(store.KeyQuery{Queues: []string{"q", "q-retry-1"}, Dead: "q-dead", Max: 1})
	rows, err := db.Writer().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+statement, args...)
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
	require.Equal(t, 2, strings.Count(plan, "weir_messages_key (queue=?)"), plan)
	require.Equal(t, 1, strings.Count(plan, "weir_messages_order (queue=?)"), "it has all that is counted of dead letters:\n%s", plan)
	require.NotContains(t, plan, "SCAN weir_messages", plan)
	require.Equal(t, 1, strings.Count(plan, "FOR GROUP BY"), "only the counts of keys are sorted, and not the messages:\n%s", plan)
}

// Regression: a search that finds little takes long. It waited for the write lock, and
// held it, so others could not write.
func TestClaimSearchesWithoutTheWriteLock(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s := sqlite.New(db)
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: "a"}}))
	tx, err := db.Writer().BeginTx(t.Context(), nil) // another writer
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	claimed, err := s.Claim(ctx, "dead", store.Filter{Key: "rare"}, store.Page{Max: 1}, time.Minute)
	require.NoError(t, err)
	require.Empty(t, claimed)
}

// A message that another engine takes between the search and the lease is not claimed,
// and the search continues.
func TestClaimOfWhatAnotherTook(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s, other := sqlite.New(db), sqlite.New(db)
	defer s.Close()
	defer other.Close()
	require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: "a"}}, store.Message{Meta: message.Meta{ID: "b"}}))
	var once sync.Once
	sqlite.SetStep(s, func() {
		once.Do(func() {
			taken, err := other.Take(t.Context(), "dead", 1, time.Minute)
			require.NoError(t, err)
			require.Len(t, taken, 1)
		})
	})
	claimed, err := s.Claim(t.Context(), "dead", store.Filter{}, store.Page{Max: 1}, time.Minute)
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	require.Equal(t, "b", claimed[0].Meta.ID)
}
