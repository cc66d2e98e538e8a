//go:build unix

package pgcheckpoint_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgcheckpoint"
	"github.com/weirflow/weir/internal/testing/pipelinekill"
)

func TestMain(m *testing.M) {
	pipelinekill.Child(openPipelines)
	goleak.VerifyTestMain(m)
}

// failing makes a statement fail, as if the connection broke.
type failing struct {
	mu sync.Mutex
	in int // the statement, counted from 1; with 0 all succeed
}

func (f *failing) set(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in = n
}

func (f *failing) start(ctx context.Context) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.in--; f.in == 0 {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return ended
	}
	return ctx
}

func (f *failing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return f.start(ctx)
}

func (*failing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (f *failing) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return f.start(ctx)
}

func (*failing) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*failing) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func connect(t *testing.T, url string, tracer pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestStore(t *testing.T) {
	server := pgtest.Start(t)
	_, err := (&pgcheckpoint.Stores{Pool: connect(t, server.URL(), nil)}).Open(t.Context(), "p", 1)
	require.ErrorContains(t, err, "call pgcheckpoint.Stores.Migrate")
	require.NoError(t, (&pgcheckpoint.Stores{Pool: connect(t, server.URL(), nil)}).Migrate(t.Context()))
	require.NoError(t, (&pgcheckpoint.Stores{Pool: connect(t, server.URL(), nil)}).Migrate(t.Context()), "again")
	n := 0
	checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
		var fail failing
		pool := connect(t, server.URL(), &fail)
		stores := &pgcheckpoint.Stores{Pool: pool}
		n++
		pipeline := fmt.Sprintf("pipeline %d", n)
		open := func() (checkpoint.Store, error) { return stores.Open(context.Background(), pipeline, 7) }
		return checkpointtest.Setup{
			Open: open, TakeOver: open, Fail: fail.set,
			Damage: func(id uint64) error {
				_, err := pool.Exec(t.Context(), `UPDATE weir_checkpoints SET snapshot = set_byte(snapshot, 20, get_byte(snapshot, 20) # 1)
					WHERE pipeline = $1 AND id = $2`, pipeline, int64(id))
				return err
			},
		}
	})
}

func TestStoresThatAreRefused(t *testing.T) {
	require.ErrorContains(t, new(pgcheckpoint.Stores).Migrate(t.Context()), "Pool is nil")
	_, err := (&pgcheckpoint.Stores{Pool: new(pgxpool.Pool), Keep: -1}).Open(t.Context(), "p", 1)
	require.ErrorContains(t, err, "-1, is negative")
}

// Law P1: a stale owner can neither save nor open the store again, and does not see its
// old checkpoints.
func TestEpochs(t *testing.T) {
	server := pgtest.Start(t)
	pool := connect(t, server.URL(), nil)
	require.NoError(t, (&pgcheckpoint.Stores{Pool: pool}).Migrate(t.Context()))
	stores := &pgcheckpoint.Stores{Pool: pool, Keep: 1}
	snapshot := func(id uint64) *checkpoint.Snapshot {
		return &checkpoint.Snapshot{ID: id, States: map[string]participant.State{"a": {{1}}}}
	}
	ctx := t.Context()

	first, err := stores.Open(ctx, "p", 1)
	require.NoError(t, err)
	require.NoError(t, first.Save(ctx, snapshot(1)))
	require.NoError(t, first.Save(ctx, snapshot(2)))
	entries, err := first.List(ctx)
	require.NoError(t, err)
	require.Len(t, entries, 1, "KeepLast")

	second, err := stores.Open(ctx, "p", 2)
	require.NoError(t, err)
	_, err = first.List(ctx)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	_, err = first.Load(ctx, 2)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	require.ErrorIs(t, first.Save(ctx, snapshot(3)), checkpoint.ErrFenced)
	_, err = stores.Open(ctx, "p", 1)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	require.ErrorContains(t, err, `"p" was opened for a higher epoch than 1`)
	require.NoError(t, second.Save(ctx, snapshot(3)))

	server.Exec("DELETE FROM weir_pipelines WHERE name = 'p'")
	require.ErrorIs(t, second.Save(ctx, snapshot(4)), checkpoint.ErrFenced)
	_, err = stores.Open(ctx, "", 1)
	require.ErrorContains(t, err, "empty")
	require.NoError(t, second.Close())
}

// within calls a function in the middle of a Save: before its second round trip.
type within struct {
	failing
	do atomic.Pointer[func()]
}

func (w *within) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if f := w.do.Swap(nil); f != nil {
		(*f)()
	}
	return ctx
}

// patience asks a connection for the server's idle timeout, in the middle of a Save.
type patience struct {
	failing
	found string
}

func (p *patience) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if err := conn.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&p.found); err != nil {
		p.found = err.Error()
	}
	return ctx
}

// Regression: a process that was frozen during a Save kept the next owner of its pipeline
// waiting for hours. Later, a checkpoint that took more than a minute to arrive was never
// saved.
func TestStore_ServerWaitsForASave(t *testing.T) {
	var p patience
	stores := &pgcheckpoint.Stores{Pool: connect(t, pgtest.Start(t).URL(), &p)}
	require.NoError(t, stores.Migrate(t.Context()))
	s, err := stores.Open(t.Context(), "p", 1)
	require.NoError(t, err)
	require.NoError(t, s.Save(t.Context(), &checkpoint.Snapshot{ID: 1, States: map[string]participant.State{"a": {{1}}}}))
	require.Equal(t, "1min", p.found)
	large := make([]byte, 3<<20)
	require.NoError(t, s.Save(t.Context(), &checkpoint.Snapshot{ID: 2, States: map[string]participant.State{"a": {large}}}))
	require.Equal(t, "63s", p.found)
}

// Law P1: a store that is opened during a Save waits for it, and has its checkpoint; or
// the Save fails.
func TestOpenDuringSave(t *testing.T) {
	for _, isolation := range []string{"read committed", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) { testOpenDuringSave(t, isolation) })
	}
}

func testOpenDuringSave(t *testing.T, isolation string) {
	server := pgtest.Start(t)
	url := server.URL() + "&default_transaction_isolation=" + url.PathEscape(isolation)
	plain := connect(t, url, nil)
	require.NoError(t, (&pgcheckpoint.Stores{Pool: plain}).Migrate(t.Context()))
	hook := &within{}
	ctx := t.Context()
	before, err := (&pgcheckpoint.Stores{Pool: connect(t, url, hook)}).Open(ctx, "p", 1)
	require.NoError(t, err)
	snapshot := &checkpoint.Snapshot{ID: 1, States: map[string]participant.State{"a": {{1}}}}
	found := make(chan []checkpoint.Entry, 1)
	takeOver := func() {
		go func() {
			var entries []checkpoint.Entry
			after, err := (&pgcheckpoint.Stores{Pool: plain}).Open(ctx, "p", 2)
			if err == nil {
				entries, err = after.List(ctx)
			}
			assert.NoError(t, err)
			found <- entries
		}()
		assert.Eventually(t, func() bool { // it waits, or has ended
			return len(found) == 1 || server.Counts("SELECT 'waiting', count(*) FROM pg_locks WHERE NOT granted")["waiting"] > 0
		}, time.Minute, time.Millisecond)
	}
	hook.do.Store(&takeOver)
	err = before.Save(ctx, snapshot)
	entries := <-found
	if err == nil {
		require.Len(t, entries, 1)
	} else {
		require.ErrorIs(t, err, checkpoint.ErrFenced)
	}
	require.ErrorIs(t, before.Save(ctx, snapshot), checkpoint.ErrFenced)
}

// After a failover, a connection to a server that takes no writes leaves the pool with
// its first error. A connection that was opened under default_transaction_read_only
// simulates it.
func TestStores_ConnectionsToAStandby(t *testing.T) {
	server := pgtest.Start(t)
	setup, err := pgxpool.New(t.Context(), server.URL())
	require.NoError(t, err)
	defer setup.Close()
	require.NoError(t, (&pgcheckpoint.Stores{Pool: setup}).Migrate(t.Context()))
	server.Exec("ALTER DATABASE postgres SET default_transaction_read_only = on")
	pool, err := pgxpool.New(t.Context(), server.URL())
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, pool.Ping(t.Context()))
	_, err = setup.Exec(t.Context(), "ALTER DATABASE postgres RESET default_transaction_read_only")
	require.NoError(t, err)
	stores := &pgcheckpoint.Stores{Pool: pool}
	_, err = stores.Open(t.Context(), "p", 1)
	require.ErrorContains(t, err, "25006")
	s, err := stores.Open(t.Context(), "p", 1)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
