//go:build unix

package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/jobkill"
	"github.com/weirflow/weir/internal/testing/suite"
)

// An idle worker sends heartbeats, looks for jobs, and makes at most one transaction in
// ten seconds.
func TestHeartbeatsOfAnIdleWorker(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	c, err := pgxpool.ParseConfig(server.URL())
	require.NoError(t, err)
	traced := &statements{}
	c.ConnConfig.Tracer = traced
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	engine := postgres.New(pool)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	pay := backend.New("pay", backend.WithLogger(quiet))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // ends with ctx
		q := delivery.NewQueue[int](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour), delivery.WithLogger(quiet))
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) { return i, nil }), time.Hour, 10,
			asyncop.WithFailureSink(q.TakeFailure), asyncop.WithBackend(pay), asyncop.WithLogger(quiet))
		_, err := delivery.Run(ctx, q, op, delivery.NewQueue[int](engine, "receipts"), delivery.WithLogger(quiet))
		ended <- err
	}()
	other, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet)) // another process
	require.NoError(t, err)
	defer other.Close()
	j, err := jobs.New(other, jobs.Config{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		workers, err := j.Workers(t.Context())
		return err == nil && len(workers) == 1
	}, time.Minute, 10*time.Millisecond)
	before := traced.settle(t)
	within := 10 * time.Second
	if suite.Full() {
		within = 30 * time.Second
	}
	time.Sleep(within)
	transactions, open := 0, false
	for _, sql := range traced.since(before) {
		switch {
		case strings.HasPrefix(sql, "begin"):
			open = true
			transactions++
		case sql == "commit":
			open = false
		default:
			if !open {
				transactions++
			}
		}
	}
	t.Logf("%d transactions in %v", transactions, within)
	require.LessOrEqual(t, transactions, int(within/(10*time.Second)))

	// It obeys an order of another process to hold its backend.
	ordered := time.Now()
	_, err = j.HoldBackend(t.Context(), "pay", "ann", "they migrate")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return pay.Stats().State == backend.Held }, time.Minute, time.Millisecond)
	t.Logf("held after %v", time.Since(ordered))
	require.Less(t, time.Since(ordered), 2*time.Second)
	stop()
	require.NoError(t, <-ended)
	workers, err := j.Workers(t.Context())
	require.NoError(t, err)
	require.Empty(t, workers)
}

func TestKilledJobs(t *testing.T) { jobkill.Run(t, schemas(t)(t), openForJobs) }

func openForJobs(ctx context.Context, url string) (store.Keeper, error) {
	return postgres.Open(ctx, url, postgres.WithLogger(quiet))
}

// patience asks a connection for the server's idle timeout, at the second statement of a
// transaction.
type patience struct {
	statements
	armed bool
	found string
}

func (p *patience) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if p.armed {
		p.armed = false
		if err := conn.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&p.found); err != nil {
			p.found = err.Error()
		}
	}
	return ctx
}

// Regression: a process that was frozen in a transaction kept its changed rows locked for
// hours.
func TestEngine_ServerWaitsForAnUpdate(t *testing.T) {
	config, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	var p patience
	config.ConnConfig.Tracer = &p
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := postgres.New(pool)
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		p.armed = true
		_, err := tx.Records(ctx, "job", "", 1)
		return err
	}))
	require.Equal(t, "30s", p.found)
}
