//go:build unix

package pgrecords_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgrecords"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/killtest"
)

func TestMain(m *testing.M) {
	killtest.Child(openCounters)
	child.Run("charges", serveCharges)
	goleak.VerifyTestMain(m)
}

// TestRecords runs the tests with one server.
func TestRecords(t *testing.T) {
	server := pgtest.Start(t)
	for name, test := range map[string]func(*testing.T, *pgtest.Server){
		"Store":              testStore,
		"OldSnapshot":        testOldSnapshot,
		"MarkWaitsPatiently": testMarkWaitsPatiently,
		"FrozenTransaction":  testFrozenTransaction,
		"CollectionCost":     testCollectionCost,
		"LostCommit":         testLostCommit,
		"Exec":               testExec,
		"ExecErrors":         testExecErrors,
		"ExecNotSent":        testExecNotSent,
		"ExecRestored":       testExecRestored,
		"ExecContext":        testExecContext,
		"Hangs":              testContextOfAServerThatHangs,
		"ExecConflicts":      testExecConflicts,
		"KilledServers":      testKilledServers,
		"Failover":           testFailover,
		"NotMigrated":        testNotMigrated,
		"Format":             testFormat,
		"BesideQueues":       testBesideQueues,
		"OwnIsolation":       testOwnIsolation,
		"NewClientOfTwo":     testNewClientOfTwo,
		"ExecOfAHeldClient":  testExecOfAHeldClient,
	} {
		t.Run(name, func(t *testing.T) { test(t, server) })
	}
}

const (
	tables = `CREATE TABLE counters (name TEXT PRIMARY KEY, n BIGINT NOT NULL)`
	add    = `INSERT INTO counters (name, n) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = counters.n + 1`
)

func connect(t testing.TB, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var schemas atomic.Int64

// schema makes an empty schema with the table of counters. A database would take
// several times as long.
func schema(t testing.TB, server *pgtest.Server) (url string) {
	t.Helper()
	name := fmt.Sprintf("test_%d", schemas.Add(1))
	server.Exec("CREATE SCHEMA " + name)
	url = server.URL() + "&search_path=" + name
	_, err := connect(t, url).Exec(t.Context(), tables)
	require.NoError(t, err)
	return url
}

func count(ctx context.Context, pool *pgxpool.Pool, name string) (n int, err error) {
	err = pool.QueryRow(ctx, "SELECT coalesce(sum(n), 0) FROM counters WHERE name = $1", name).Scan(&n)
	return n, err
}

func open(t testing.TB, pool *pgxpool.Pool) *pgrecords.Records {
	t.Helper()
	require.NoError(t, pgrecords.New(pool).Migrate(context.Background()))
	return pgrecords.New(pool)
}

func openBy(t testing.TB, pool *pgxpool.Pool, c clock.Clock) *pgrecords.Records {
	t.Helper()
	r := open(t, pool)
	pgrecords.SetClock(r, c)
	return r
}

func testStore(t *testing.T, server *pgtest.Server) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			exactlyoncetest.RunStore(t, func(t *testing.T, c clock.Clock) exactlyoncetest.Setup[pgx.Tx] {
				url := schema(t, server)
				pool := connect(t, url)
				return exactlyoncetest.Setup[pgx.Tx]{
					Open: func() exactlyonce.Store[pgx.Tx] { return openBy(t, connect(t, url), c) },
					Begin: func(ctx context.Context) (exactlyoncetest.Transaction[pgx.Tx], error) {
						tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
						if err != nil {
							return exactlyoncetest.Transaction[pgx.Tx]{}, err
						}
						return exactlyoncetest.Transaction[pgx.Tx]{TX: tx, Commit: tx.Commit, Rollback: tx.Rollback}, nil
					},
					Add: func(ctx context.Context, tx pgx.Tx, name string) error {
						_, err := tx.Exec(ctx, add, name)
						return err
					},
					Count: func(ctx context.Context, name string) (int, error) { return count(ctx, pool, name) },
					Again: func(err error) bool { return code(err) == "40001" || code(err) == "40P01" },
				}
			})
		})
	}
}

func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

func request(client exactlyonce.Client, sequence int64, attempt int) exactlyonce.Request {
	return exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: sequence, Attempt: attempt}, Scope: "s"}
}

// A mark was raised after the snapshot of a transaction was taken: the transaction must
// not store below it.
func testOldSnapshot(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	pool := connect(t, url)
	r := open(t, pool)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		client := exactlyonce.NewClient()
		_, err := r.Run(t.Context(), request(client, 1, 1), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
		require.NoError(t, err)
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM weir_clients") // the snapshot
		require.NoError(t, err)
		require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 2}}}))
		assert.Equal(t, "40001", code(r.Put(t.Context(), tx, request(client, 1, 2), nil)))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// An open transaction that has put blocks its client's mark, and other requests of this
// client only briefly.
func testMarkWaitsPatiently(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	pool := connect(t, url)
	r := open(t, pool)
	client := exactlyonce.NewClient()
	nothing := func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }
	_, err := r.Run(t.Context(), request(client, 1, 1), nothing)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Put(t.Context(), tx, request(client, 2, 1), nil))
	marked := make(chan error, 1)
	go func() {
		marked <- r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 2}}})
	}()
	require.Eventually(t, func() bool { // it waits for its lock
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&n)
		return err == nil && n == 1
	}, time.Minute, time.Millisecond)
	for sequence := range int64(3) {
		_, err = r.Run(t.Context(), request(client, sequence+3, 1), nothing)
		require.NoError(t, err)
	}
	select {
	case err := <-marked:
		t.Fatalf("the mark did not wait: %v", err)
	default:
	}
	require.NoError(t, tx.Commit(t.Context()))
	if <-marked != nil { // on a slow machine
		require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 2}}}))
	}
	state, _, err := exactlyoncetest.StateOf(r.Find(t.Context(), request(client, 1, 2)))
	require.NoError(t, err)
	assert.Equal(t, "stale", state)
}

// settings notes the settings of transactions that lock a client.
type settings struct{ found []string }

func (s *settings) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "advisory_xact_lock(") {
		var found string
		err := conn.QueryRow(ctx, `SELECT current_setting('transaction_isolation') || ', ' || current_setting('lock_timeout') || ', ' ||
			current_setting('idle_in_transaction_session_timeout')`).Scan(&found)
		s.found = append(s.found, fmt.Sprint(found, err))
	}
	return ctx
}

func (*settings) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Law X1: a snapshot that is older than the lock of a client does not see the answer that
// was stored last, whatever the database's default is.
func testOwnIsolation(t *testing.T, server *pgtest.Server) {
	var s settings
	pool := connect(t, schema(t, server)+"&default_transaction_isolation=repeatable%20read", func(c *pgxpool.Config) { c.ConnConfig.Tracer = &s })
	mock := clock.NewMock()
	mock.Set(time.Unix(1_000_000_000, 0))
	r := openBy(t, pool, mock)
	s.found = nil // of the migration
	client := exactlyonce.NewClient()
	_, err := r.Run(t.Context(), request(client, 1, 1), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
	require.NoError(t, err)
	require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 2}}}))
	mock.Add(48 * time.Hour)
	_, clients, err := r.Collect(t.Context(), mock.Now().Add(-10*time.Minute), mock.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, clients)
	require.Greater(t, len(s.found), 1)
	for _, found := range s.found {
		require.Equal(t, "read committed, 100ms, 30s<nil>", found)
	}
}

// beforeFind calls a function once, before a record is looked for.
type beforeFind struct{ do func() }

func (b *beforeFind) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if do := b.do; do != nil && strings.Contains(d.SQL, "LEFT JOIN weir_answers") {
		b.do = nil
		do()
	}
	return ctx
}

func (*beforeFind) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Regression: of two transactions that put for a new client, the second failed if the
// first had committed meanwhile.
func testNewClientOfTwo(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	var b beforeFind
	r, other := open(t, connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &b })), open(t, connect(t, url))
	client := exactlyonce.NewClient()
	nothing := func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }
	b.do = func() {
		_, err := other.Run(t.Context(), request(client, 1, 1), nothing)
		require.NoError(t, err)
	}
	_, err := r.Run(t.Context(), request(client, 2, 1), nothing)
	require.NoError(t, err)
}

// A frozen process has put and leaves its transaction open. It delays the marks of its
// clients briefly, but neither other marks nor a collection.
func testFrozenTransaction(t *testing.T, server *pgtest.Server) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		pool := connect(t, schema(t, server))
		mock := clock.NewMock()
		mock.Set(time.Unix(1_000_000_000, 0))
		r := openBy(t, pool, mock)
		frozen, other := exactlyonce.NewClient(), exactlyonce.NewClient()
		nothing := func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }
		for _, client := range []exactlyonce.Client{frozen, other} {
			for sequence := range int64(20) {
				_, err := r.Run(t.Context(), request(client, sequence+1, 1), nothing)
				require.NoError(t, err)
			}
		}
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		defer tx.Rollback(context.Background()) //nolint:errcheck // it is committed, or the test has failed
		require.NoError(t, r.Put(t.Context(), tx, request(frozen, 100, 1), nil))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err = r.Acknowledge(ctx, []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: frozen, First: 2}}, {Scope: "s", ID: exactlyonce.ID{Client: other, First: 2}}})
		require.Equal(t, "55P03", code(err))
		require.ErrorContains(t, err, frozen.String())
		require.NoError(t, ctx.Err())
		if level == pgx.ReadCommitted { // its client can be noted as active meanwhile
			require.NoError(t, r.Acknowledge(ctx, []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: frozen}}}))
		}
		state, _, err := exactlyoncetest.StateOf(r.Find(t.Context(), request(other, 1, 2)))
		require.NoError(t, err)
		require.Equal(t, "stale", state)
		mock.Add(48 * time.Hour)
		_, clients, err := r.Collect(ctx, mock.Now().Add(-10*time.Minute), mock.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, 1, clients)
		cancel()

		require.NoError(t, tx.Commit(t.Context()))
		state, _, err = exactlyoncetest.StateOf(r.Find(t.Context(), request(frozen, 100, 2)))
		require.NoError(t, err)
		require.Equal(t, "completed", state)
		require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: frozen, First: 2}}}))
	}
}

// Law W3: a collection looks at a client when its time has come, and leaves no rows
// behind.
func testCollectionCost(t *testing.T, server *pgtest.Server) {
	pool := connect(t, schema(t, server))
	mock := clock.NewMock()
	mock.Set(time.Unix(1_000_000_000, 0))
	r := openBy(t, pool, mock)
	const n = 300
	nothing := func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }
	for i := range n {
		client := exactlyonce.NewClient()
		for sequence := range int64(1 + i%2*7) { // one row, or many
			_, err := r.Run(t.Context(), request(client, sequence+1, 1), nothing)
			require.NoError(t, err)
		}
	}
	_, err := pool.Exec(t.Context(), `CREATE TABLE looks (id BIGINT);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO looks VALUES (old.id); RETURN new; END $$;
CREATE TRIGGER look AFTER UPDATE ON weir_clients FOR EACH ROW EXECUTE FUNCTION look()`)
	require.NoError(t, err)
	count := func(table string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
		return n
	}
	collect := func(want string, answers, looks int) {
		t.Helper()
		before := count("looks")
		got, _, err := r.Collect(t.Context(), mock.Now().Add(-10*time.Minute), mock.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, answers, got, want)
		require.LessOrEqual(t, count("looks")-before, looks, want)
	}
	mock.Add(75 * time.Second)
	collect("nothing is due", 0, 0)
	mock.Add(10 * time.Minute)
	collect("answers", n/2+8*n/2, 2*n)
	collect("once", 0, 0)
	mock.Add(20 * time.Minute)
	collect("no client is silent", 0, 0)
	mock.Add(time.Hour)
	collect("clients", 0, 2*n)
	require.Zero(t, count("weir_answers"))
	require.Equal(t, n, count("weir_clients"), "their marks")
	mock.Add(22 * time.Hour)
	collect("marks are kept", 0, 0)
	mock.Add(2 * time.Hour)
	collect("marks", 0, 2*n)
	require.Zero(t, count("weir_clients"))
}

type lossy struct {
	net.Conn
	armed  *atomic.Bool
	before bool // the COMMIT is not sent; otherwise its answer is lost
	lost   atomic.Bool
}

var errLost = errors.New("lost")

var preparedCommit = fmt.Appendf(nil, "stmtcache_%x", sha256.Sum256([]byte("commit")))[:len("stmtcache_")+48]

func (c *lossy) Write(p []byte) (int, error) {
	if (bytes.Contains(p, []byte("commit\x00")) || bytes.Contains(p, preparedCommit)) && c.armed.CompareAndSwap(true, false) {
		if c.before {
			c.Close()
			return 0, errLost
		}
		c.lost.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost.Load() { // the server has answered
		c.Close()
		return 0, errLost
	}
	return n, err
}

// A lost answer to COMMIT is resolved by reading the record (law X2).
func testLostCommit(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	plain := connect(t, url)
	for _, before := range []bool{false, true} {
		armed := &atomic.Bool{}
		pool := connect(t, url, func(c *pgxpool.Config) {
			c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				return &lossy{Conn: conn, armed: armed, before: before}, err
			}
		})
		r := open(t, pool)
		client := exactlyonce.NewClient()
		for name, call := range map[string]func(req exactlyonce.Request, counter string) ([]byte, error){
			"run": func(req exactlyonce.Request, counter string) ([]byte, error) {
				return r.Run(t.Context(), req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					_, err := tx.Exec(ctx, add, counter)
					return []byte("done"), err
				})
			},
			"exec": func(req exactlyonce.Request, counter string) ([]byte, error) {
				return r.Exec(t.Context(), req, pgrecords.Statement{SQL: add + " RETURNING 'done'", Args: []any{counter}, Answer: text})
			},
		} {
			t.Run(fmt.Sprint(name, " before=", before), func(t *testing.T) {
				req := request(client, int64(len(name)), 1)
				counter := fmt.Sprint(name, before)
				_, err := call(request(client, int64(len(name)+10), 1), "warm up") // prepares the statements
				require.NoError(t, err)
				armed.Store(true)
				answer, err := call(req, counter)
				assert.False(t, armed.Load(), "no COMMIT was seen")
				n, countErr := count(t.Context(), plain, counter)
				require.NoError(t, countErr)
				if !before {
					require.NoError(t, err)
					assert.Equal(t, "done", string(answer))
					assert.Equal(t, 1, n)
					return
				}
				assert.ErrorIs(t, err, errLost)
				assert.Equal(t, 0, n)
				req.Attempt = 2
				answer, err = call(req, counter)
				require.NoError(t, err)
				assert.Equal(t, "done", string(answer))
			})
		}
	}
}

func text(rows pgx.Rows) ([]byte, error) {
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	return []byte(s), err
}

// Attempts of the same requests at two servers at once, in shared transactions: each
// takes effect once, and all get the same answer (law X1).
func testExec(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	servers := []*pgrecords.Records{open(t, connect(t, url)), open(t, connect(t, url))}
	clients := []exactlyonce.Client{exactlyonce.NewClient(), exactlyonce.NewClient(), exactlyonce.NewClient()}
	const n, attempts = 60, 6
	var mu sync.Mutex
	answers := map[string]map[string]bool{}
	var wg sync.WaitGroup
	for i := range n * attempts {
		wg.Go(func() {
			client := clients[i%3]
			req := request(client, int64(i%n+1), i/n+1)
			answer, err := servers[i/n%2].Exec(t.Context(), req, pgrecords.Statement{
				SQL: add + " RETURNING n::text", Args: []any{"total"}, Answer: text,
			})
			assert.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			key := fmt.Sprint(client, req.Sequence)
			if answers[key] == nil {
				answers[key] = map[string]bool{}
			}
			answers[key][string(answer)] = true
		})
	}
	wg.Wait()
	total, err := count(t.Context(), connect(t, url), "total")
	require.NoError(t, err)
	assert.Equal(t, n, total)
	distinct := map[string]bool{}
	for key, all := range answers {
		assert.Len(t, all, 1, "attempts of %s got different answers", key)
		for answer := range all {
			distinct[answer] = true
		}
	}
	assert.Len(t, distinct, n)
}

// An open transaction that has put for a new client blocks Exec of that client only:
// other calls are not delayed by sharing a batch with it. A held call is retried when the
// clock moves, which it does at the end.
func testExecOfAHeldClient(t *testing.T, server *pgtest.Server) {
	pool, now := connect(t, schema(t, server)), clock.NewMock()
	r := openBy(t, pool, now)
	busy, held := exactlyonce.NewClient(), exactlyonce.NewClient()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck // it is committed, or the test has failed
	require.NoError(t, r.Put(t.Context(), tx, request(held, 1, 1), nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type result struct {
		answer []byte
		err    error
	}
	exec := func(to chan<- result, req exactlyonce.Request, name string) {
		go func() { // ends with ctx
			answer, err := r.Exec(ctx, req, pgrecords.Statement{SQL: add + " RETURNING name", Args: []any{name}, Answer: text})
			to <- result{answer, err}
		}()
	}
	const n = 10
	of, others := make(chan result, n), make(chan result, 2)
	for i := range int64(n) {
		lock, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer lock.Rollback(context.Background()) //nolint:errcheck // as above
		_, err = lock.Exec(ctx, "LOCK TABLE counters")
		require.NoError(t, err)
		exec(others, request(busy, i+1, 1), "busy") // calls that arrive while it waits form one batch
		require.Eventually(t, func() bool {
			return server.Counts("SELECT 'waiting', count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted")["waiting"] == 1
		}, time.Minute, time.Millisecond)
		for j := range int64(2) { // in both orders
			if i%2 == j {
				exec(of, request(held, i+1, 1), "held")
			} else {
				exec(others, request(exactlyonce.NewClient(), 1, 1), "other")
			}
			require.Eventually(t, func() bool { return pgrecords.Waiting(r) == int(j)+1 }, time.Minute, time.Millisecond)
		}
		require.NoError(t, lock.Commit(ctx))
		for range 2 {
			require.NoError(t, (<-others).err)
		}
		require.Empty(t, of)
	}
	require.NoError(t, tx.Commit(ctx))
	require.Eventually(t, func() bool {
		now.Add(time.Second)
		return len(of) == n
	}, time.Minute, time.Millisecond)
	answers := map[string]int{}
	for range n {
		r := <-of
		require.NoError(t, r.err)
		answers[string(r.answer)]++
	}
	require.Equal(t, map[string]int{"": 1, "held": n - 1}, answers, "the first one was completed by the transaction")
	total, err := count(ctx, pool, "held")
	require.NoError(t, err)
	require.Equal(t, n-1, total)
}

// In a shared transaction each call gets its own error, and the others are committed.
func testExecErrors(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	pool := connect(t, url)
	r := open(t, pool)
	client := exactlyonce.NewClient()
	errRefused := errors.New("refused")
	require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 2}}}))
	const n = 40
	errs := make([]error, n+2)
	var wg sync.WaitGroup
	for i := 1; i <= n+1; i++ {
		wg.Go(func() {
			s := pgrecords.Statement{SQL: add, Args: []any{"total"}}
			switch {
			case i%8 == 3:
				s = pgrecords.Statement{SQL: "SELECT 1 / ($1::int - $1::int)", Args: []any{i}}
			case i%8 == 5:
				s.Answer = func(pgx.Rows) ([]byte, error) { return nil, errRefused }
			case i%8 == 7:
				s.Answer = func(pgx.Rows) ([]byte, error) { panic("seven") }
			}
			_, errs[i] = r.Exec(t.Context(), request(client, int64(i), 1), s)
		})
	}
	wg.Wait()
	want := 0
	for i := 1; i <= n+1; i++ {
		state, _, err := exactlyoncetest.StateOf(r.Find(t.Context(), request(client, int64(i), 2)))
		require.NoError(t, err)
		switch {
		case i == 1:
			assert.ErrorIs(t, errs[i], exactlyonce.ErrStale)
		case i%8 == 3:
			assert.Equal(t, "22012", code(errs[i]))
			assert.Equal(t, "new", state)
		case i%8 == 5:
			assert.ErrorIs(t, errs[i], errRefused)
			assert.Equal(t, "new", state)
		case i%8 == 7:
			assert.ErrorContains(t, errs[i], "panic in user code: seven")
		default:
			assert.NoError(t, errs[i])
			assert.Equal(t, "completed", state)
			want++
		}
	}
	total, err := count(t.Context(), pool, "total")
	require.NoError(t, err)
	assert.Equal(t, want, total)
	_, err = r.Exec(t.Context(), exactlyonce.Request{}, pgrecords.Statement{})
	assert.ErrorIs(t, err, exactlyonce.ErrInvalid)
	mismatch := request(client, 2, 2)
	_, err = r.Exec(t.Context(), mismatch, pgrecords.Statement{SQL: add, Args: []any{"total"}})
	assert.NoError(t, err, "the record answers")
}

// A statement that cannot be prepared or whose arguments cannot be encoded is the fault
// of its call only, however pgx sends them.
func testExecNotSent(t *testing.T, server *pgtest.Server) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		t.Run(mode.String(), func(t *testing.T) {
			pool := connect(t, schema(t, server), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			r := open(t, pool)
			client := exactlyonce.NewClient()
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "LOCK TABLE counters") // so that the rest is one batch
			require.NoError(t, err)
			const n = 10
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				s := pgrecords.Statement{SQL: add, Args: []any{"total"}}
				switch i {
				case 7:
					s.SQL = "nonsense"
				case 8:
					s.Args = []any{make(chan int)}
				case 9:
					s.Answer = func(pgx.Rows) ([]byte, error) { return nil, nil }
				}
				wg.Go(func() { _, errs[i] = r.Exec(t.Context(), request(client, int64(i+1), 1), s) })
				if i == 0 {
					require.Eventually(t, func() bool {
						var waiting int
						err := tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted").Scan(&waiting)
						return err == nil && waiting == 1
					}, time.Minute, time.Millisecond)
				}
			}
			require.Eventually(t, func() bool { return pgrecords.Waiting(r) == n-1 }, time.Minute, time.Millisecond)
			require.NoError(t, tx.Commit(t.Context()))
			wg.Wait()
			for i, err := range errs {
				switch i {
				case 7:
					assert.Equal(t, "42601", code(err), "%v", err)
				case 8:
					assert.ErrorContains(t, err, "chan int")
				default:
					assert.NoError(t, err)
				}
			}
			total, err := count(t.Context(), pool, "total")
			require.NoError(t, err)
			assert.Equal(t, n-2, total)
		})
	}
}

// A database may lose data, when it is restored or its replica takes over. Numbers of
// clients in memory are then unknown, or belong to other clients. Records go to their
// clients nevertheless (law X1).
func testExecRestored(t *testing.T, server *pgtest.Server) {
	pool := connect(t, schema(t, server))
	open(t, pool)
	exec := func(r *pgrecords.Records, req exactlyonce.Request) {
		t.Helper()
		_, err := r.Exec(t.Context(), req, pgrecords.Statement{SQL: add, Args: []any{"total"}})
		require.NoError(t, err)
	}
	empty := func() {
		t.Helper()
		_, err := pool.Exec(t.Context(), "TRUNCATE weir_clients, weir_answers RESTART IDENTITY")
		require.NoError(t, err)
	}
	for _, others := range []bool{false, true} {
		empty()
		r, client := pgrecords.New(pool), exactlyonce.NewClient()
		exec(r, request(client, 1, 1))
		empty()
		if others {
			exec(pgrecords.New(pool), request(exactlyonce.NewClient(), 1, 1))
		}
		exec(r, request(client, 2, 1))
		state, _, err := exactlyoncetest.StateOf(r.Find(t.Context(), request(client, 2, 2)))
		require.NoError(t, err)
		require.Equal(t, "completed", state, "others=%v", others)
	}
}

// No caller waits longer than its context for a statement that hangs, and once all have
// left the statement ends.
func testExecContext(t *testing.T, server *pgtest.Server) {
	url := schema(t, server)
	pool := connect(t, url)
	r := open(t, pool)
	client := exactlyonce.NewClient()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE counters")
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			_, err := r.Exec(ctx, request(client, int64(i+1), 1), pgrecords.Statement{SQL: add, Args: []any{"total"}})
			assert.ErrorIs(t, err, errGone)
		})
	}
	waiting := func() (n int) {
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted").Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return waiting() == 1 }, time.Minute, time.Millisecond)
	cancel(errGone)
	wg.Wait()
	require.Eventually(t, func() bool { return waiting() == 0 }, time.Minute, time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = r.Exec(t.Context(), request(client, 1, 2), pgrecords.Statement{SQL: add, Args: []any{"total"}})
	require.NoError(t, err)
	total, err := count(t.Context(), pool, "total")
	require.NoError(t, err)
	assert.Equal(t, 1, total)
}

// Nor does one wait long for the record of an attempt that has failed.
func testContextOfAServerThatHangs(t *testing.T, server *pgtest.Server) {
	pool := connect(t, schema(t, server))
	r := open(t, pool)
	pgrecords.SetPatience(r, 100*time.Millisecond)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE weir_clients, weir_answers")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, request(exactlyonce.NewClient(), 1, 1), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
		ended <- err
	}()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(time.Minute):
		t.Error("Run does not return after its context has ended")
	}
	require.NoError(t, tx.Rollback(t.Context()))
}

// A transaction that failed with a serialization failure or a deadlock is run again, as a
// whole.
func testExecConflicts(t *testing.T, server *pgtest.Server) {
	pool := connect(t, schema(t, server))
	_, err := pool.Exec(t.Context(), `CREATE SEQUENCE tries;
CREATE FUNCTION flaky(good bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('tries') < good THEN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END IF; -- a sequence is not rolled back
	RETURN 'done';
END $$`)
	require.NoError(t, err)
	r := open(t, pool)
	client := exactlyonce.NewClient()
	answer, err := r.Exec(t.Context(), request(client, 1, 1), pgrecords.Statement{SQL: "SELECT flaky($1)", Args: []any{3}, Answer: text})
	require.NoError(t, err)
	assert.Equal(t, "done", string(answer))
	_, err = r.Exec(t.Context(), request(client, 2, 1), pgrecords.Statement{SQL: "SELECT flaky($1)", Args: []any{1000}, Answer: text})
	assert.Equal(t, "40P01", code(err))
	state, _, err := exactlyoncetest.StateOf(r.Find(t.Context(), request(client, 2, 1)))
	require.NoError(t, err)
	assert.Equal(t, "new", state)
}

// The user has forgotten to call Migrate.
func testNotMigrated(t *testing.T, server *pgtest.Server) {
	ctx := t.Context()
	r := pgrecords.New(connect(t, schema(t, server)))
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 1}}
	for name, call := range map[string]func() error{
		"find": func() error { _, _, err := r.Find(ctx, req); return err },
		"run": func() error {
			_, err := r.Run(ctx, req, func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
			return err
		},
		"exec": func() error { _, err := r.Exec(ctx, req, pgrecords.Statement{SQL: "SELECT 1"}); return err },
		"acknowledge": func() error {
			return r.Acknowledge(ctx, []exactlyonce.Request{{ID: exactlyonce.ID{Client: req.Client, First: 1}}})
		},
		"collect": func() error { _, _, err := r.Collect(ctx, time.Now(), time.Now()); return err },
	} {
		assert.ErrorContains(t, call(), "call pgrecords.Records.Migrate", name)
	}
}

// After a failover, a connection to a server that takes no writes leaves the pool with
// its first error. A connection that was opened under default_transaction_read_only
// simulates it.
func TestRecords_ConnectionsToAStandby(t *testing.T) {
	server := pgtest.Start(t)
	setup := connect(t, server.URL())
	require.NoError(t, pgrecords.New(setup).Migrate(t.Context()))
	for name, call := range map[string]func(r *pgrecords.Records, sequence int64) error{
		"Run": func(r *pgrecords.Records, sequence int64) error {
			_, err := r.Run(t.Context(), request(exactlyonce.NewClient(), sequence, 1), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil })
			return err
		},
		"Exec": func(r *pgrecords.Records, sequence int64) error {
			_, err := r.Exec(t.Context(), request(exactlyonce.NewClient(), sequence, 1), pgrecords.Statement{SQL: "SELECT 1"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := setup.Exec(t.Context(), "ALTER DATABASE postgres SET default_transaction_read_only = on")
			require.NoError(t, err)
			pool := connect(t, server.URL())
			require.NoError(t, pool.Ping(t.Context()))
			_, err = setup.Exec(t.Context(), "ALTER DATABASE postgres RESET default_transaction_read_only")
			require.NoError(t, err)
			r := pgrecords.New(pool)
			require.ErrorContains(t, call(r, 1), "25006")
			require.NoError(t, call(r, 2))
		})
	}
}
