//go:build unix

package pgretry_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgretry"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// wire notes which elements were written to a connection. It does not depend on errors.
type wire struct {
	mu   sync.Mutex
	sent map[string]bool
}

var marker = regexp.MustCompile(`element-[0-9]{5}`)

type wireConn struct {
	net.Conn
	w *wire
}

func (c wireConn) Write(p []byte) (int, error) {
	c.w.mu.Lock()
	for _, m := range marker.FindAll(bytes.Clone(p), -1) {
		c.w.sent[string(m)] = true
	}
	c.w.mu.Unlock()
	return c.Conn.Write(p)
}

// clients are the ways to PostgreSQL.
var clients = map[string]func(t *testing.T, url string, w *wire) func(ctx context.Context, element string) error{
	"pgx": func(t *testing.T, url string, w *wire) func(context.Context, string) error {
		config, err := pgxpool.ParseConfig(url)
		require.NoError(t, err)
		config.MaxConns = 32
		config.ConnConfig.DialFunc = w.dial
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // one message a statement
		config.ConnConfig.Tracer = pgretry.Tracer{}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return func(ctx context.Context, element string) error {
			_, err := pool.Exec(ctx, "INSERT INTO effects VALUES ($1)", element)
			return err
		}
	},
	"database/sql": func(t *testing.T, url string, w *wire) func(context.Context, string) error {
		config, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		config.DialFunc = w.dial
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		db := stdlib.OpenDB(*config)
		db.SetMaxOpenConns(32)
		t.Cleanup(func() { db.Close() })
		return func(ctx context.Context, element string) error {
			_, err := db.ExecContext(ctx, "INSERT INTO effects VALUES ($1)", element)
			return err
		}
	},
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return wireConn{conn, w}, nil
}

// Inserts must not happen twice while their server is killed and shut down: no insert is
// repeated, and inserts that were never sent do not fail, as they do with netretry alone.
func TestInsertsIntoADyingServer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const elements = 2000
	server := pgtest.Start(t)
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			server.Exec("DROP TABLE IF EXISTS effects", "CREATE TABLE effects (element text)")
			w := &wire{sent: map[string]bool{}}
			insert := client(t, server.URL(), w)
			call := asyncop.Blocking(func(ctx context.Context, element string) (string, error) { return element, insert(ctx, element) })

			var failures []asyncop.Failure[string]
			op := asyncop.UnorderedWaitWithRetry(call, time.Minute, 64,
				strategies.ReasonAware(pgretry.Classifier[string](), strategies.BestEffort[string]()),
				asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
					failures = append(failures, f)
					return nil
				}))
			done := 0
			for _, err := range op.Results(func(yield func(string) bool) {
				for i := range elements {
					if !yield(fmt.Sprintf("element-%05d", i)) {
						return
					}
				}
			}) {
				require.NoError(t, err)
				if done++; done%500 == 250 { // killed and shut down twice each, with calls in flight
					if done%1000 == 250 {
						server.Kill()
					} else {
						server.Shutdown()
					}
					server.Start()
				}
			}
			require.NoError(t, op.Err())

			effects := server.Counts("SELECT element, count(*) FROM effects GROUP BY element")
			for element, n := range effects {
				assert.Equal(t, 1, n, "%s took effect twice", element)
			}
			needless := 0
			for _, f := range failures {
				if !w.sent[f.Element] {
					needless++
				}
				if !f.UnsafeToRepeat() {
					assert.Zero(t, effects[f.Element], "%s: said to be without effect: %v", f.Element, f.Err)
				}
				delete(effects, f.Element)
			}
			assert.Zero(t, needless, "of %d failures", len(failures))
			assert.Len(t, effects, elements-len(failures), "elements lost")
			t.Logf("%d elements, %d failed in flight, %d retries", elements, len(failures), op.Stats().Retries())
		})
	}
}

// A function that commits twice: its first effect is not repeated because the rest was
// not sent.
func TestTracer(t *testing.T) {
	server := pgtest.Start(t)
	server.Exec("CREATE TABLE effects (element text UNIQUE)", "INSERT INTO effects VALUES ('there')")
	config, err := pgxpool.ParseConfig(server.URL())
	require.NoError(t, err)
	config.ConnConfig.Tracer = pgretry.Tracer{}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	insert := func(ctx context.Context, element string) error {
		_, err := pool.Exec(ctx, "INSERT INTO effects VALUES ($1)", element)
		return err
	}
	unsent := &sendError{true, net.ErrClosed}
	transaction := func(ctx context.Context, element string, end func(pgx.Tx, context.Context) error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", element); err != nil {
				return err
			}
			return end(tx, ctx)
		})
	}
	for name, tt := range map[string]struct {
		call    func(ctx context.Context) error
		retried bool
		inDoubt bool
	}{
		"never sent": {func(ctx context.Context) error { return unsent }, true, false},
		"after an insert": {func(ctx context.Context) error {
			require.NoError(t, insert(ctx, "a"))
			return unsent
		}, false, true},
		"after a refused one": {func(ctx context.Context) error {
			require.Error(t, insert(ctx, "there"))
			return unsent
		}, true, false},
		"in a transaction": {func(ctx context.Context) error {
			return transaction(ctx, "b", func(pgx.Tx, context.Context) error { return unsent })
		}, true, false},
		"after a transaction": {func(ctx context.Context) error {
			require.NoError(t, transaction(ctx, "c", func(pgx.Tx, context.Context) error { return nil }))
			return unsent
		}, false, true},
		"refused, after a transaction": {func(ctx context.Context) error {
			require.NoError(t, transaction(ctx, "d", func(pgx.Tx, context.Context) error { return nil }))
			return insert(ctx, "there")
		}, false, true},
		"refused alone": {func(ctx context.Context) error { return insert(ctx, "there") }, false, false},
		"after a batch": {func(ctx context.Context) error {
			batch := &pgx.Batch{}
			batch.Queue("INSERT INTO effects VALUES ('e')")
			require.NoError(t, pool.SendBatch(ctx, batch).Close())
			return unsent
		}, false, true},
		"after an insert and a batch that was not sent": {func(ctx context.Context) error {
			conn, err := pool.Acquire(ctx)
			require.NoError(t, err)
			defer conn.Release()
			_, err = conn.Exec(ctx, "INSERT INTO effects VALUES ('g')")
			require.NoError(t, err)
			over, cancel := context.WithCancel(ctx)
			cancel()
			batch := &pgx.Batch{}
			batch.Queue("INSERT INTO effects VALUES ('h')")
			require.Error(t, conn.SendBatch(over, batch).Close()) // pgx reports the end of the batch twice
			return unsent
		}, false, true},
		"after a copy": {func(ctx context.Context) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"element"}, pgx.CopyFromRows([][]any{{"f"}}))
			require.NoError(t, err)
			return unsent
		}, false, true},
		"after a copy that was refused": {func(ctx context.Context) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"element"}, pgx.CopyFromRows([][]any{{"there"}}))
			require.Error(t, err)
			return unsent
		}, true, false},
		"after a read that is told apart": {func(ctx context.Context) error {
			_, err := pool.Exec(predicates.WithStageReporter(ctx, nil), "SELECT 1")
			require.NoError(t, err)
			return unsent
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			var failures []asyncop.Failure[string]
			op := asyncop.OrderedWaitWithRetry(
				asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					if calls++; calls > 1 {
						return in, nil
					}
					return in, tt.call(ctx)
				}), time.Minute, 1, strategies.ReasonAware(pgretry.Classifier[string](), nil),
				asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
					failures = append(failures, f)
					return nil
				}))
			for _, err := range op.Results(slices.Values([]string{"x"})) {
				require.NoError(t, err)
			}
			if tt.retried {
				assert.Equal(t, 2, calls)
				assert.Empty(t, failures)
			} else {
				assert.Equal(t, 1, calls)
				require.Len(t, failures, 1)
				assert.Equal(t, tt.inDoubt, failures[0].UnsafeToRepeat())
			}
		})
	}
}

// Errors of a server that is down, starts or ends, one statement after the other.
func TestErrorsOfARealServer(t *testing.T) {
	server := pgtest.Start(t)
	server.Exec("CREATE TABLE effects (element text UNIQUE, n int)")
	conn, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	defer conn.Close(context.Background())
	other, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	defer other.Close(context.Background())
	reason := func(sql string) predicates.Reason {
		_, err := conn.Exec(t.Context(), sql)
		require.Error(t, err, sql)
		return classify(&predicates.Attempt[int]{Err: err})
	}

	_, err = conn.Exec(t.Context(), "INSERT INTO effects VALUES ('a', 1)")
	require.NoError(t, err)
	assert.Equal(t, rejection("23505"), reason("INSERT INTO effects VALUES ('a', 1)"))
	assert.Equal(t, rejection("22P02"), reason("INSERT INTO effects VALUES ('b', 'x')"))
	assert.Equal(t, rejection("42P01"), reason("SELECT * FROM nothing"))
	assert.Equal(t, rejection("57014"), reason("SET statement_timeout = 1; SELECT pg_sleep(60)"))
	assert.Equal(t, strong("25006"), reason("BEGIN READ ONLY; DELETE FROM effects"))
	_, err = conn.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)

	// Each transaction reads what the other writes, so one of them must fail.
	for _, c := range []*pgx.Conn{conn, other} {
		_, err := c.Exec(t.Context(), "RESET statement_timeout; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(n) FROM effects")
		require.NoError(t, err)
	}
	_, err = other.Exec(t.Context(), "INSERT INTO effects VALUES ('c', 2); COMMIT")
	require.NoError(t, err)
	assert.Equal(t, strong("40001"), reason("INSERT INTO effects VALUES ('d', 2); COMMIT"))
	_, err = conn.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)

	_, err = other.Exec(t.Context(), "BEGIN; LOCK TABLE effects")
	require.NoError(t, err)
	assert.Equal(t, strong("55P03"), reason("BEGIN; LOCK TABLE effects NOWAIT"))

	server.Shutdown()
	assert.Equal(t, netretry.ConnectionLost, reason("SELECT 1"), "it was sent, as far as the client knows")
	assert.Equal(t, netretry.NotConnected, reason("SELECT 1"), "the connection is known to be closed")
	_, err = pgx.Connect(t.Context(), server.URL())
	assert.Equal(t, netretry.NotConnected, classify(&predicates.Attempt[int]{Err: err}))
}
