//go:build unix

package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/message"
)

// woken returns what gets a value whenever an engine wakes a queue, and how Wake has
// ended. It does not wait.
func woken(ctx context.Context, s store.Waker, queue string) (wakes <-chan struct{}, ended <-chan error) {
	w, e := make(chan struct{}, 100), make(chan error, 1)
	go func() { // ends with ctx, or with the engine
		e <- s.Wake(ctx, queue, func(bool) { w <- struct{}{} })
	}()
	return w, e
}

// Regression: a message that was released before it was due came up to 20 s late.
func TestWake_MessageReleasedBeforeItIsDue(t *testing.T) {
	url := schemas(t)(t)
	s, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	q := delivery.NewQueue[int](s, "q")
	at := arrivals(t, q)
	j, err := jobs.New(s, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	do := func(action store.Action) {
		job, err := j.Start(t.Context(), jobs.Spec{Do: action, Queue: "q", By: "ann", Why: "test"})
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, 1, job.Done)
	}
	const delay = 3 * time.Second
	begun := time.Now()
	require.NoError(t, q.Put(t.Context(), 1, delivery.After(delay)))
	do(store.Hold)
	require.NoError(t, q.Put(t.Context(), 2, delivery.After(300*time.Millisecond)))
	<-at // so the hub has looked while the first was held
	time.Sleep(time.Second)
	do(store.Release)
	<-at
	require.Less(t, time.Since(begun), 2*delay)
}

// Regression: of messages put together, only the first was announced, and a message with
// a delay was up to 20 s late.
func TestWake_DelayBesideAnImmediateMessage(t *testing.T) {
	url := schemas(t)(t)
	open := func() *postgres.Engine {
		s, err := postgres.Open(t.Context(), url, postgres.WithLogger(quiet))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	worker, other := open(), open()
	at := arrivals(t, delivery.NewQueue[int](worker, "jobs"))
	jobs := delivery.NewQueue[int](other, "jobs")
	require.NoError(t, jobs.Put(t.Context(), 0))
	<-at
	time.Sleep(time.Second) // it no longer polls
	encoded := func(delay time.Duration) store.Message {
		m, err := jobs.Encode(1, delivery.After(delay))
		require.NoError(t, err)
		return m
	}
	const delay = 300 * time.Millisecond
	for what, put := range map[string]func() error{
		"one Put":            func() error { return other.Put(t.Context(), "jobs", encoded(0), encoded(delay)) },
		"one Put, other way": func() error { return worker.Put(t.Context(), "jobs", encoded(delay), encoded(0)) },
		"two that are joined": func() error {
			return errorsOf(jobs.Put(t.Context(), 1), jobs.Put(t.Context(), 1, delivery.After(delay)))
		},
		"PutTx": func() error {
			return pgx.BeginFunc(t.Context(), other.Pool(), func(tx pgx.Tx) error {
				return errorsOf(postgres.PutTx(t.Context(), tx, jobs, 1, delivery.After(delay)), postgres.PutTx(t.Context(), tx, jobs, 1))
			})
		},
	} {
		begun := time.Now()
		require.NoError(t, put(), what)
		<-at
		<-at
		require.Less(t, time.Since(begun), 5*time.Second, what)
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Regression: a worker waited for ever for the messages of an engine that was closed.
func TestWake_EngineIsClosed(t *testing.T) {
	s, err := postgres.Open(t.Context(), schemas(t)(t), postgres.WithLogger(quiet))
	require.NoError(t, err)
	wakes, ended := woken(t.Context(), s, "q")
	q := delivery.NewQueue[int](s, "jobs")
	received := make(chan error, 1)
	go func() { // ends with the engine
		_, err := q.Receive(context.Background(), 1)
		received <- err
	}()
	<-wakes
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-ended, store.ErrClosed)
	err = <-received
	require.ErrorIs(t, err, store.ErrClosed)
	require.ErrorContains(t, err, `queue "jobs"`)
	require.NoError(t, q.Close(t.Context()))
	require.ErrorIs(t, s.Wake(t.Context(), "q", func(bool) {}), store.ErrClosed)
}

// garbled is a connection on which LISTEN is a syntax error.
type garbled struct {
	net.Conn
	closed func()
}

func (c garbled) Write(b []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(b, []byte("LISTEN"), []byte("LASTEN")))
}

func (c garbled) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Regression: a connection that could not listen stayed open.
func TestWake_ConnectionThatCannotListen(t *testing.T) {
	c, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	var open atomic.Int32
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		open.Add(1)
		return garbled{conn, sync.OnceFunc(func() { open.Add(-1) })}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	for range 20 {
		require.ErrorContains(t, s.Wake(t.Context(), "q", func(bool) {}), "syntax error")
	}
	require.NoError(t, s.Close())
	pool.Close()
	require.Zero(t, open.Load())
}

// unsent makes statements that notify fail.
type unsent struct{ tries atomic.Int32 }

func (u *unsent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "pg_notify") && u.tries.Add(1) < 3 {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return ended
	}
	return ctx
}

func (*unsent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Regression: a notice that could not be sent was given up, so that the workers of other
// processes looked up to 20 s later.
func TestNoticesAreSentAgain(t *testing.T) {
	c, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	u := &unsent{}
	c.ConnConfig.Tracer = u
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := postgres.New(pool)
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "a"}}))
	require.Eventually(t, func() bool { return u.tries.Load() == 3 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Close())
	require.EqualValues(t, 3, u.tries.Load())
}

// An engine whose pool was closed before it gives up its notices: others look.
func TestNoticesOfAPoolThatWasClosed(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), schemas(t)(t))
	require.NoError(t, err)
	mock := clock.NewMock()
	s := postgres.New(pool)
	postgres.SetClock(s, mock)
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "a"}}))
	pool.Close()
	stacks := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		mock.Add(time.Second)
		return !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("postgres.(*Engine).send("))
	}, 2*time.Minute, time.Millisecond)
}

// deaf is a connection that gets no notifications, as behind a pooler of transactions.
type deaf struct {
	net.Conn
	rest bytes.Buffer
}

func (d *deaf) Read(b []byte) (int, error) {
	for d.rest.Len() == 0 {
		head := make([]byte, 5) // the kind of the message, and its length
		if _, err := io.ReadFull(d.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(d.Conn, body); err != nil {
			return 0, err
		}
		if head[0] != 'A' {
			d.rest.Write(head)
			d.rest.Write(body)
		}
	}
	return d.rest.Read(b)
}

// Regression: behind a pooler of transactions a worker waited for notifications that
// never arrive, instead of polling with a warning.
func TestWake_PoolerHidesNotifications(t *testing.T) {
	c, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &deaf{Conn: conn}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := postgres.New(pool)
	require.NoError(t, s.Migrate(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.ErrorContains(t, s.Wake(ctx, "q", func(bool) {}), "pooler")
	require.NoError(t, s.Close())
}

// Regression: behind a pooler of transactions, a message of the same process stopped the
// polling of a source that did not listen yet, for up to three seconds for each try to
// listen.
func TestWake_SourceThatDoesNotListenYet(t *testing.T) {
	c, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	c.MaxConns = 1
	var gated atomic.Bool
	connecting, through := make(chan struct{}), make(chan struct{})
	c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if gated.Load() {
			connecting <- struct{}{}
			<-through
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := postgres.New(pool)
	require.NoError(t, s.Migrate(t.Context()))
	put := func(id string) {
		require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: id}}))
	}
	gated.Store(true) // the pool has its connection
	for _, id := range []string{"a", "c"} {
		misses, ended := make(chan bool, 100), make(chan error, 1)
		go func() { // ends with the connection
			ended <- s.Wake(t.Context(), "q", func(m bool) { misses <- m })
		}()
		<-connecting
		put(id)
		require.True(t, <-misses, "it does not listen yet")
		through <- struct{}{}
		require.False(t, <-misses, "it listens")
		put(id + " again")
		require.False(t, <-misses)
		_, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
		require.NoError(t, err)
		require.ErrorContains(t, <-ended, "listening")
	}
	require.NoError(t, s.Close())
}

// Regression: the connection that listens had the password of the start, where the pool
// asks for one each time.
func TestListeningAsksBeforeItConnects(t *testing.T) {
	c, err := pgxpool.ParseConfig(schemas(t)(t))
	require.NoError(t, err)
	user := c.ConnConfig.User
	c.ConnConfig.User = "no_such_user"
	c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.User = user
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	wakes, ended := woken(t.Context(), s, "q")
	select {
	case <-wakes:
	case err := <-ended:
		t.Fatal(err)
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-ended, store.ErrClosed)
}
