//go:build unix

package pgrecords_test

import (
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The tables, with an answer, and a client whose requests below a mark are stale
// (law W4).
func testFormat(t *testing.T, server *pgtest.Server) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	pool := connect(t, schema(t, server))
	records := openBy(t, pool, mock)
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.Client{1, 15: 255}, Sequence: 17, Attempt: 1, Step: "refund"}, Scope: "ann", Fingerprint: [32]byte{1, 31: 255}}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return records.Put(t.Context(), tx, req, []byte("done")) }))
	require.NoError(t, records.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "ann", ID: exactlyonce.ID{Client: req.Client, First: 16}}}))
	tables := golden.Database{DB: stdlib.OpenDBFromPool(pool), Files: records.Migrations(), Tables: []string{"weir_clients", "weir_answers"}, Postgr: true}
	defer tables.DB.Close()
	script := golden.Written(t, "answers-2.sql", tables.Script(t))

	oldPool := connect(t, schema(t, server))
	db := stdlib.OpenDBFromPool(oldPool)
	defer db.Close()
	golden.Run(t.Context(), t, db, script)
	records = open(t, oldPool)
	state, answer, err := exactlyoncetest.StateOf(records.Find(t.Context(), req))
	require.NoError(t, err)
	require.Equal(t, "completed", state)
	require.Equal(t, "done", string(answer))
	req.Sequence = 15
	state, _, err = exactlyoncetest.StateOf(records.Find(t.Context(), req))
	require.NoError(t, err)
	require.Equal(t, "stale", state)
}

// The answers and the queues are in one database, whichever came first: once both had a
// table weir_records.
func testBesideQueues(t *testing.T, server *pgtest.Server) {
	for _, queuesFirst := range []bool{true, false} {
		pool := connect(t, schema(t, server))
		if queuesFirst {
			require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		}
		records := open(t, pool)
		require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		state, _, err := exactlyoncetest.StateOf(records.Find(t.Context(), exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.Client{1}, Sequence: 1, Attempt: 1}}))
		require.NoError(t, err)
		require.Equal(t, "new", state)
		_, err = postgres.New(pool).Records(t.Context(), "job", "", 1)
		require.NoError(t, err)
	}
}
