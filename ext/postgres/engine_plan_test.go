//go:build unix

package postgres_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// explained returns a pool of one connection, and the plans of its statements.
func explained(t *testing.T, url string) (pool *pgxpool.Pool, plans func() string) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 1
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "client_min_messages": "log",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	var mu sync.Mutex // an engine notifies on a goroutine of its own
	var seen strings.Builder
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		seen.WriteString(n.Message + "\n")
	}
	pool, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, func() string {
		mu.Lock()
		defer mu.Unlock()
		s := seen.String()
		seen.Reset()
		return s
	}
}

// Statements that workers and commands run all the time must not scan all messages, with
// or without statistics of the table, and with both custom and generic plans.
func TestStatementsUseAnIndex(t *testing.T) {
	n := 20_000 // enough for the planner to consider a scan
	if suite.Long() {
		n = 100_000
	}
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta, payload)
		SELECT CASE WHEN n % 10 = 0 THEN 'other' ELSE 'q' END, now, now, now, 0, 0, '', jsonb_build_object('id', n::text), repeat('x', 256)::bytea
		FROM generate_series(1, $1) AS n, (SELECT clock_timestamp() AS now) AS clock`, n)
	require.NoError(t, err)
	plans()
	check := func(what string, more ...string) {
		t.Helper()
		plan := plans()
		require.Contains(t, plan, "weir_messages", what)
		for _, unwanted := range append(more, "Seq Scan on weir_messages") {
			require.NotContains(t, plan, unwanted, what)
		}
	}
	for round := range 6 {
		if round == 3 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
			plans()
		}
		for _, size := range []int{1, 500} {
			taken, err := s.Take(t.Context(), "q", size, time.Minute)
			require.NoError(t, err)
			require.Len(t, taken, size)
			check("Take", "Sort")
			leases := make([]store.Lease, size)
			for i := range taken {
				leases[i] = taken[i].Lease
			}
			require.NoError(t, s.Extend(t.Context(), time.Minute, leases...))
			check("Extend")
			require.NoError(t, s.Release(t.Context(), time.Hour, leases[:size/2]...))
			if size > 1 {
				check("Release")
			}
			require.NoError(t, s.Done(t.Context(), leases[size/2:]...))
			check("Done")
			entries, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: size})
			require.NoError(t, err)
			require.Len(t, entries, size)
			check("List", "Sort")
			one := store.Filter{IDs: []string{entries[0].Meta.ID}}
			entries, err = s.List(t.Context(), "q", one, store.Page{Max: size})
			require.NoError(t, err)
			require.Len(t, entries, 1)
			check("List of an id", "weir_messages_queue", "JIT") // the primary key finds the chosen ones
			_, err = s.Claim(t.Context(), "q", store.Filter{IDs: []string{"none"}}, store.Page{Max: size}, time.Minute)
			require.NoError(t, err)
			check("Claim of an id", "weir_messages_queue")
			claimed, err := s.Claim(t.Context(), "q", store.Filter{}, store.Page{Max: size}, time.Minute)
			require.NoError(t, err)
			check("Claim", "Sort")
			moves := make([]store.Move, size)
			ms := make([]store.Message, size)
			for i := range moves {
				ms[i] = store.Message{Meta: message.Meta{ID: "moved " + strconv.Itoa(round*1000+i)}}
				moves[i] = store.Move{Lease: claimed[i].Lease, Queue: "dead", Message: ms[i]}
			}
			require.NoError(t, s.Move(t.Context(), moves...))
			check("Move")
			require.NoError(t, s.Put(t.Context(), "q", ms...))
			check("Put")
			_, err = s.Purge(t.Context(), "q", store.Filter{IDs: []string{ms[0].Meta.ID}})
			require.NoError(t, err)
			check("Purge of an id")
			_, err = s.Purge(t.Context(), "q", store.Filter{Error: "no such text"})
			require.NoError(t, err)
			check("Purge", "Sort")
		}
	}
	names, err := s.Queues(t.Context())
	require.NoError(t, err)
	require.Contains(t, names, "other")
	check("Queues")
}

// Regression: with the plan for all parameters, a page of a queue read all messages that
// other queues had put before.
func TestEngineList_BehindAnotherQueue(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT CASE WHEN n > 18000 THEN 'last' ELSE 'first' END, now, now, now, 0, 0, '', jsonb_build_object('id', n::text)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	for round := range 14 {
		if round == 7 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		for _, f := range []store.Filter{{}, {Error: "none"}, {Since: time.Unix(0, 0)}} {
			plans()
			_, err := s.List(t.Context(), "last", f, store.Page{Max: 50})
			require.NoError(t, err)
			_, err = s.Claim(t.Context(), "last", f, store.Page{Max: 50}, time.Minute)
			require.NoError(t, err)
			plan := plans()
			require.NotContains(t, plan, "Filter: (queue", "it reads messages of other queues")
			require.NotContains(t, plan, "Sort")
		}
	}
}

// Finding the messages of a key does not look at messages of other keys: a worker with an
// order of keys asks for each key that is freed.
func TestEngine_FilterOfAKeyUsesAnIndex(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT 'q', now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', 'k' || n)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	for round := range 2 {
		if round == 1 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		for _, key := range []string{"k700", "none"} {
			plans()
			_, err := s.List(t.Context(), "q", store.Filter{Key: key}, store.Page{Max: 10})
			require.NoError(t, err)
			_, err = s.Count(t.Context(), "q", store.Filter{Key: key})
			require.NoError(t, err)
			_, err = s.Claim(t.Context(), "q", store.Filter{Key: key}, store.Page{Max: 10}, time.Minute)
			require.NoError(t, err)
			plan := plans()
			require.Equal(t, 3, strings.Count(plan, "weir_messages_key")+strings.Count(plan, "weir_messages_order"), plan)
			require.NotContains(t, plan, "weir_messages_queue")
			require.NotContains(t, plan, "Seq Scan on weir_messages")
		}
	}
}

// Regression: the next page of a key looked at all messages of the key, so the time of a
// job with many pages grew with their square.
func TestEngine_NextPageOfAKey(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT 'q', now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', CASE WHEN n % 2 = 0 THEN n::text ELSE 'hot' END)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	for round := range 14 { // also with the plan for all parameters
		if round == 7 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		for _, until := range []int64{0, 1001} {
			plans()
			hot := store.Filter{Key: "hot"}
			entries, err := s.List(t.Context(), "q", hot, store.Page{After: 1000, Until: until, Max: 500})
			require.NoError(t, err)
			require.NotEmpty(t, entries)
			_, err = s.Claim(t.Context(), "q", hot, store.Page{After: 1000, Until: until, Max: 500}, time.Minute)
			require.NoError(t, err)
			plan := plans()
			require.Regexp(t, "weir_messages_(queue|order)", plan, "an index that has the positions in order")
			require.NotContains(t, plan, "weir_messages_key")
			require.NotContains(t, plan, "Sort")
		}
	}
}

// The search for the next keys of a round does not read the messages of other keys.
func TestEngineTakeByKey_UsesAnIndex(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT 'q', now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', CASE WHEN n % 1000 = 0 THEN n::text ELSE 'flood' END)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	for round := range 6 {
		if round == 3 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		plans()
		taken, _, err := s.TakeByKey(t.Context(), "q", store.KeyRound{Each: 1}, 100, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, []int{21, 1, 1, 1, 1, 1}[round])
		plan := plans()
		require.Contains(t, plan, "weir_messages_key")
		require.NotContains(t, plan, "Seq Scan on weir_messages")
	}
}

// With a limit and several layers, leases are counted in the index of the leases with a
// limit. The search for due keys counts them only after a take that has found keys at the
// limit, and takes without a limit never do.
func TestEngineTakeByKey_CountsInAnIndex(t *testing.T) {
	const index, search = "weir_messages_flight", "Recursive Union"
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT (ARRAY['q', 'q-retry-1', 'q-retry-2'])[1 + n % 3], now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', 'k' || n % 1000)
		FROM generate_series(1, 45000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	for round := range 14 { // also with the plan for all parameters
		if round == 7 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		s := postgres.New(pool) // it has not found keys at their limits
		mock := clock.NewMock()
		postgres.SetClock(s, mock)
		queue := []string{"q", "q-retry-1", "q-retry-2"}[round%3]
		take := func(limit int) []store.Leased {
			t.Helper()
			plans()
			taken, _, err := s.TakeByKey(t.Context(), queue, store.KeyRound{Each: 1, Limit: limit}, 20, time.Hour)
			require.NoError(t, err)
			return taken
		}
		check := func(what string, counts, countsInSearch bool) {
			t.Helper()
			plan := plans()
			require.NotContains(t, plan, "Seq Scan on weir_messages", what)
			require.Equal(t, counts, strings.Contains(plan, index), "%s: %s", what, plan)
			for statement := range strings.SplitSeq(plan, "Query Text:") {
				if strings.Contains(statement, search) {
					require.Equal(t, countsInSearch, strings.Contains(statement, index), "%s: %s", what, statement)
				}
			}
		}
		free := take(0)
		require.Len(t, free, 20)
		check("without a limit", false, false)
		first := take(1)
		require.Len(t, first, 20, "leases without a limit do not count")
		check("the first take with a limit", true, false)
		require.Empty(t, take(1), "messages of full keys")
		check("a take that finds full keys", true, false)
		second := take(1)
		require.Len(t, second, 20, "messages of the keys that are not full")
		check("the next take", true, true)
		mock.Add(time.Minute)
		require.Empty(t, take(1), "messages of full keys")
		check("a take long after", true, false)
		for _, m := range slices.Concat(free, first, second) {
			require.NoError(t, s.Done(t.Context(), m.Lease))
		}
		require.NoError(t, s.Close())
	}
}
