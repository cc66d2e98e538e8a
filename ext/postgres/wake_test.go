//go:build unix

package postgres_test

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/message"
)

var quiet = slog.New(slog.DiscardHandler)

type statements struct {
	mu  sync.Mutex
	sql []string
}

func (s *statements) note(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sql = append(s.sql, sql)
}

func (s *statements) since(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sql[n:])
}

// settle returns when no statement has come for two seconds, and the number of statements
// until then.
func (s *statements) settle(t *testing.T) (n int) {
	t.Helper()
	n, last := len(s.since(0)), time.Now()
	require.Eventually(t, func() bool {
		if now := len(s.since(0)); now > n {
			n, last = now, time.Now()
		}
		return time.Since(last) >= 2*time.Second
	}, time.Minute, 50*time.Millisecond)
	return n
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.note(d.SQL)
	return ctx
}
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	s.note("batch")
	return ctx
}
func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// arrivals receives from a queue until the test ends, and returns when its messages came.
func arrivals(t *testing.T, q *delivery.Queue[int]) <-chan time.Time {
	t.Helper()
	at := make(chan time.Time, 100)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		for ctx.Err() == nil {
			ms, err := q.Receive(ctx, 10)
			for _, m := range ms {
				at <- time.Now()
				m.Ack()
			}
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		require.NoError(t, q.Close(context.Background()))
	})
	return at
}

// An idle worker makes at most one transaction in ten seconds, with all of its layers. A
// new message starts at once, no matter how it was put, and one listening connection
// serves all queues of a process.
func TestWake_IdleWorker(t *testing.T) {
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
	worker := postgres.New(pool)
	t.Cleanup(func() { require.NoError(t, worker.Close()) })
	layers := delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour)
	at := arrivals(t, delivery.NewQueue[int](worker, "jobs", layers))
	arrivals(t, delivery.NewQueue[int](worker, "others", layers))
	other, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet)) // another process
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	jobs := delivery.NewQueue[int](other, "jobs")

	// The hub has started when a message arrives at once.
	require.NoError(t, jobs.Put(t.Context(), 0))
	<-at
	before := traced.settle(t)
	time.Sleep(10 * time.Second)
	asked := traced.since(before)
	require.LessOrEqual(t, len(asked), 1, "%q", asked[:min(len(asked), 5)])

	listening := server.Counts(`SELECT query, count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' GROUP BY query`)
	require.Len(t, listening, 1)
	for _, n := range listening {
		require.Equal(t, 1, n)
	}

	took := func(what string, put func(i int) (due time.Time, err error)) {
		t.Helper()
		var all []time.Duration
		for i := range 11 {
			due, err := put(i)
			require.NoError(t, err, what)
			came := <-at
			require.False(t, came.Before(due), "%s: law D3", what)
			all = append(all, came.Sub(due))
			time.Sleep(30 * time.Millisecond) // it is idle again
		}
		slices.Sort(all)
		t.Logf("%s: a message starts after %v, %v at most", what, all[5], all[10])
		require.Less(t, all[5], time.Second, "%s: it was told, and has not polled; on an idle machine it takes below 50 ms", what)
	}
	took("Put", func(i int) (time.Time, error) { return time.Now(), jobs.Put(t.Context(), i) })
	took("Put of this process", func(i int) (time.Time, error) {
		return time.Now(), delivery.NewQueue[int](worker, "jobs").Put(t.Context(), i)
	})
	took("PutTx", func(i int) (time.Time, error) {
		return time.Now(), pgx.BeginFunc(t.Context(), other.Pool(), func(tx pgx.Tx) error { return postgres.PutTx(t.Context(), tx, jobs, i) })
	})
	took("PutSQLTx", func(i int) (time.Time, error) {
		db := stdlib.OpenDBFromPool(other.Pool())
		defer db.Close() // the pool stays
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, postgres.PutSQLTx(t.Context(), tx, jobs, i))
		return time.Now(), tx.Commit()
	})
	took("After", func(i int) (time.Time, error) {
		return time.Now().Add(300 * time.Millisecond), jobs.Put(t.Context(), i, delivery.After(300*time.Millisecond))
	})
	_, err = pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
	require.NoError(t, err)
	for i := range 3 { // it polls until it listens again
		require.NoError(t, jobs.Put(t.Context(), i))
		select {
		case <-at:
		case <-time.After(10 * time.Second):
			t.Fatal("a message does not arrive after the listening connection was cut")
		}
		time.Sleep(time.Second)
	}
}

// PutTx refuses a queue of another engine, and a value that cannot be encoded.
func TestPutTxRefuses(t *testing.T) {
	url := schemas(t)(t)
	engine, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	err = pgx.BeginFunc(t.Context(), engine.Pool(), func(tx pgx.Tx) error {
		return postgres.PutTx(t.Context(), tx, delivery.NewQueue[float64](engine, "q"), math.NaN())
	})
	require.ErrorIs(t, err, message.ErrRefused)
	other := struct{ store.Store }{engine}
	err = pgx.BeginFunc(t.Context(), engine.Pool(), func(tx pgx.Tx) error {
		return postgres.PutTx(t.Context(), tx, delivery.NewQueue[int](other, "q"), 1)
	})
	require.ErrorContains(t, err, `queue "q" is on a`)
}

// Open makes missing tables. If it may not, the error has the remedy.
func TestOpen(t *testing.T) {
	server := pgtest.Start(t)
	engine, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, engine.Close())
	require.NoError(t, engine.Close())

	server.Exec("CREATE ROLE poor LOGIN", "CREATE SCHEMA closed", "GRANT USAGE ON SCHEMA closed TO poor")
	poor := server.URL() + "&search_path=closed&user=poor"
	_, err = postgres.Open(t.Context(), poor, postgres.WithLogger(quiet))
	require.ErrorContains(t, err, "this user may not make the tables")
	require.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS weir_messages (")
	require.ErrorContains(t, err, "INSERT INTO weir_migrations (component, version) VALUES ('pgstore', 1)")

	engine, err = postgres.Open(t.Context(), poor, postgres.WithoutMigrations()) // they may be made later
	require.NoError(t, err)
	require.ErrorContains(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1), "call postgres.Engine.Migrate")
	require.NoError(t, engine.Close())

	// If another user made the tables, the user needs only the right to use them.
	made, err := postgres.Open(t.Context(), server.URL()+"&search_path=closed", postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, made.Close())
	server.Exec("GRANT SELECT ON closed.weir_migrations TO poor", "GRANT SELECT, INSERT, UPDATE, DELETE ON closed.weir_messages TO poor")
	engine, err = postgres.Open(t.Context(), poor, postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, delivery.NewQueue[int](engine, "q").Put(t.Context(), 1))
	require.NoError(t, engine.Close())

	server.Exec("INSERT INTO weir_migrations (component, version) VALUES ('pgstore', 99)")
	_, err = postgres.Open(t.Context(), server.URL())
	require.ErrorContains(t, err, "the database has version 99")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = postgres.Open(ctx, "postgres://nobody@127.0.0.1:1/none?connect_timeout=1", postgres.WithLogger(quiet))
	require.ErrorIs(t, err, context.DeadlineExceeded, "it waits for the server")
}

// Regression: a delayed message of a long transaction was announced with its delay from
// the commit, and came up to 20 s late.
func TestWake_DelayedMessageOfALongTransaction(t *testing.T) {
	const delay = 3 * time.Second
	server := pgtest.Start(t)
	engine, err := postgres.Open(t.Context(), server.URL())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	jobs := delivery.NewQueue[int](engine, "jobs")
	at := arrivals(t, jobs)
	require.NoError(t, jobs.Put(t.Context(), 0))
	<-at // it listens
	tx, err := engine.Pool().Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, postgres.PutTx(t.Context(), tx, jobs, 1, delivery.After(delay)))
	_, err = tx.Exec(t.Context(), "SELECT pg_sleep($1)", delay.Seconds())
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	committed := time.Now()
	require.Less(t, (<-at).Sub(committed), delay/2)
}
