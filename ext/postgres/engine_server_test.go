//go:build unix

package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// proxy passes connections on to a server, which may be changed.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    []net.Conn
	all      sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, to: to}
	p.all.Go(p.accept) // ends with the listener
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			p.mu.Unlock()
			_ = in.Close()
			continue
		}
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			p.all.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
			})
		}
	}
}

func (p *proxy) use(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func hostOf(t *testing.T, url string) string {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	return net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
}

func putSome(t *testing.T, e *postgres.Engine, name string, n int) (failed int) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			m := store.Message{Meta: message.Meta{ID: name + strconv.Itoa(i)}, Payload: []byte("1")}
			err := e.Put(t.Context(), "orders", m)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
				t.Log(err)
			}
		})
	}
	all.Wait()
	return failed
}

// After a failover, connections to a server that became a standby do not stay in the
// pool.
func TestEngine_ConnectionsToAStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	setup, err := postgres.Open(t.Context(), primary.URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, setup.Close())
	standby := primary.Standby()
	for name, open := range map[string]func(url string) *postgres.Engine{
		"Open": func(url string) *postgres.Engine {
			e, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
			require.NoError(t, err)
			return e
		},
		"New": func(url string) *postgres.Engine {
			return postgres.New(connect(t, url), postgres.WithLogger(quiet))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, hostOf(t, primary.URL()))
			e := open(strings.Replace(primary.URL(), hostOf(t, primary.URL()), p.listener.Addr().String(), 1))
			defer e.Close()
			require.Zero(t, putSome(t, e, name, 1))
			p.use(hostOf(t, standby.URL()))
			p.cut()
			require.Equal(t, 20, putSome(t, e, name+" standby ", 20), "the standby takes no writes")
			require.Positive(t, e.Pool().Stat().TotalConns())
			p.use(hostOf(t, primary.URL()))
			time.Sleep(time.Second) // the pool is reset once a second at most
			require.Zero(t, putSome(t, e, name+" primary ", 80))
		})
	}

	short := func(url string, config ...postgres.Option) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		e, err := postgres.Open(ctx, url, append(config, postgres.WithLogger(quiet))...)
		if err == nil {
			err = e.Close()
		}
		return err
	}
	err = short(standby.URL())
	require.ErrorContains(t, err, "is a standby")
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	require.ErrorContains(t, short(standby.URL(), postgres.WithoutMigrations()), "is a standby")
	// With both servers in the URL, the parameter finds the primary.
	both := strings.Replace(standby.URL(), hostOf(t, standby.URL()), hostOf(t, standby.URL())+","+hostOf(t, primary.URL()), 1)
	require.NoError(t, short(both+"&target_session_attrs=read-write"))

	primary.Exec("ALTER DATABASE postgres SET default_transaction_read_only = on")
	require.ErrorContains(t, short(primary.URL()), "default_transaction_read_only is on")
}

// Behind a pooler of transactions, an engine works with the default settings of pgx.
func TestEngine_BehindPgBouncer(t *testing.T) {
	server := pgtest.Start(t)
	url := server.Bouncer()
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	e, err := postgres.Open(t.Context(), url, postgres.WithLogger(logger))
	require.NoError(t, err)
	defer e.Close()
	require.Zero(t, putSome(t, e, "a", 200))

	orders := delivery.NewQueue[int](e, "orders", delivery.WithLogger(quiet))
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) { return i, nil }),
		time.Minute, 50, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[int](e, "receipts"), delivery.WithLogger(quiet))
		ended <- err
	}()
	require.Eventually(t, func() bool {
		n, err := e.Count(t.Context(), "receipts", store.Filter{})
		require.NoError(t, err)
		return n.Messages == 200
	}, time.Minute, 20*time.Millisecond)
	require.Zero(t, putSome(t, e, "b", 200))
	stop()
	require.NoError(t, <-ended)
	require.LessOrEqual(t, strings.Count(log.String(), "default_query_exec_mode=exec"), 1, log.String())
}

// The error of a pool of the caller names the parameter, and does not end a worker for
// good. The statements are removed here as another client of a pooler would.
func TestEngine_PreparedStatementIsMissing(t *testing.T) {
	url := schemas(t)(t)
	c, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	c.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	defer pool.Close()
	e := postgres.New(pool, postgres.WithLogger(quiet))
	require.NoError(t, e.Migrate(t.Context()))
	require.Zero(t, putSome(t, e, "a", 1))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), "SELECT name, statement FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO weir_messages%'")
	require.NoError(t, err)
	var name, statement string
	require.True(t, rows.Next())
	require.NoError(t, rows.Scan(&name, &statement))
	rows.Close()
	_, err = conn.Conn().PgConn().Exec(t.Context(), "DEALLOCATE ALL").ReadAll()
	require.NoError(t, err)
	conn.Release()
	check := func(code string) {
		t.Helper()
		err := e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "b"}, Payload: []byte("1")})
		require.ErrorContains(t, err, code)
		require.ErrorContains(t, err, "default_query_exec_mode=exec")
		require.False(t, guard.IsPermanent(err))
	}
	check("26000")

	pool.Reset()
	conn, err = pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Conn().PgConn().Exec(t.Context(), fmt.Sprintf("PREPARE %q AS SELECT 1", name)).ReadAll()
	require.NoError(t, err)
	conn.Release()
	check("42P05")

	// A pool of Open runs statements without preparing them from then on.
	e, err = postgres.Open(t.Context(), url, postgres.WithLogger(quiet), postgres.WithConnections(1))
	require.NoError(t, err)
	defer e.Close()
	count := func() {
		t.Helper()
		_, err := e.Count(t.Context(), "orders", store.Filter{})
		require.NoError(t, err)
	}
	count()
	conn, err = e.Pool().Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Conn().PgConn().Exec(t.Context(), "DEALLOCATE ALL").ReadAll()
	require.NoError(t, err)
	conn.Release()
	count()
	conn, err = e.Pool().Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	var prepared string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(statement, ';'), '') FROM pg_prepared_statements").Scan(&prepared))
	require.Empty(t, prepared)
}

// Open warns about a database that is not UTF-8, and does not make tables in it.
func TestOpen_DatabaseIsNotUTF8(t *testing.T) {
	server := pgtest.Start(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		url := newDatabase(server, "not_utf8_"+strings.ToLower(encoding), encoding)
		begun := time.Now()
		_, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
		require.ErrorContains(t, err, "has the encoding "+encoding)
		require.ErrorContains(t, err, "ENCODING 'UTF8'")
		require.True(t, guard.IsPermanent(err))
		require.Less(t, time.Since(begun), 30*time.Second)
		makeTables(t, url)
		var log bytes.Buffer
		e, err := postgres.Open(t.Context(), url, postgres.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.NoError(t, e.Close())
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "encoding="+encoding)
	}
}

// Open waits for a server that is down, and does not wait after a refusal.
func TestOpen_ServerIsDown(t *testing.T) {
	server := pgtest.Start(t)
	server.Kill()
	opened := make(chan error, 1)
	go func() {
		e, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
		if err == nil {
			err = e.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		require.Fail(t, "Open does not wait", "%v", err)
	case <-time.After(500 * time.Millisecond):
	}
	server.Start()
	require.NoError(t, <-opened)

	begun := time.Now()
	for _, url := range []string{
		strings.Replace(server.URL(), "/postgres?", "/missing?", 1),
		strings.Replace(server.URL(), "weir@", "nobody@", 1),
	} {
		_, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
		require.ErrorContains(t, err, "does not exist")
		require.True(t, guard.IsPermanent(err))
	}
	require.Less(t, time.Since(begun), 30*time.Second)
}

// If a user may open fewer connections than the pool has, the engine uses those few.
func TestEngine_FewerConnectionsThanThePool(t *testing.T) {
	server := pgtest.Start(t)
	setup, err := postgres.Open(t.Context(), server.URL(), postgres.WithLogger(quiet))
	require.NoError(t, err)
	require.NoError(t, setup.Close())
	server.Exec("CREATE ROLE few LOGIN CONNECTION LIMIT 1", "GRANT ALL ON ALL TABLES IN SCHEMA public TO few")
	e, err := postgres.Open(t.Context(), strings.Replace(server.URL(), "weir@", "few@", 1), postgres.WithLogger(quiet))
	require.NoError(t, err)
	defer e.Close()
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for n := range 5 {
				_, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 10})
				assert.NoError(t, err)
				err = e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: fmt.Sprint(i, n)}, Payload: []byte("1")})
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
}

// lockedBuffer is a log that goroutines share.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
