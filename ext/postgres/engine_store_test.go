//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/internal/testing/fleettest"
	"github.com/weirflow/weir/internal/testing/jobkill"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/internal/testing/storecrash"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/internal/testing/workerkill"
	"github.com/weirflow/weir/message"
)

func TestMain(m *testing.M) {
	storecrash.Child(openForCrash)
	workerkill.Child(openForWorkers)
	jobkill.Child(openForJobs)
	fleettest.Child(openForFleet)
	suite.SetParallel(8, 4)
	goleak.VerifyTestMain(sharing{m})
}

// sharing stops the shared server when the tests have ended.
type sharing struct{ *testing.M }

func (s sharing) Run() int {
	defer pgtest.StopShared()
	return s.M.Run()
}

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var schemaN atomic.Int64 // schemas of the shared server

// schemas returns a function that makes empty schemas of the shared server.
func schemas(t *testing.T) func(t *testing.T) (url string) {
	t.Helper()
	pgtest.Shared(t)
	return func(t *testing.T) string {
		t.Helper()
		server := pgtest.Shared(t)
		n := schemaN.Add(1)
		server.Exec(fmt.Sprintf("CREATE SCHEMA test%d", n))
		return fmt.Sprintf("%s&search_path=test%d", server.URL(), n)
	}
}

func TestStore(t *testing.T) {
	newSchema := schemas(t)
	deliverytest.RunStore(t, func(t *testing.T) deliverytest.StoreSetup {
		t.Parallel() // the rules wait for the server
		pool := connect(t, newSchema(t))
		require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		exec := func(sql string, args ...any) {
			_, err := pool.Exec(t.Context(), sql, args...)
			require.NoError(t, err)
		}
		exec("CREATE TABLE test_clock AS SELECT timestamptz '2026-01-01' AS now")
		return deliverytest.StoreSetup{
			Open: func() (store.Store, error) {
				s := postgres.New(pool)
				postgres.SetNow(s, "(SELECT now FROM test_clock)")
				return s, nil
			},
			Wait: func(d time.Duration) {
				exec("UPDATE test_clock SET now = now + $1 * interval '1 microsecond'", d.Microseconds())
			},
		}
	})
}

// No call waits longer than its context for a server that hangs: a worker must be able to
// end.
func TestEngine_HangingServer(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	m := store.Message{Meta: message.Meta{ID: "1"}}
	require.NoError(t, s.Put(t.Context(), "q", m))
	taken, err := s.Take(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	l := taken[0].Lease
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE weir_messages")
	require.NoError(t, err)
	for what, call := range map[string]func(ctx context.Context) error{
		"Put":     func(ctx context.Context) error { return s.Put(ctx, "q", m) },
		"Extend":  func(ctx context.Context) error { return s.Extend(ctx, time.Hour, l) },
		"Done":    func(ctx context.Context) error { return s.Done(ctx, l) },
		"Release": func(ctx context.Context) error { return s.Release(ctx, 0, l) },
		"Move": func(ctx context.Context) error {
			return s.Move(ctx, store.Move{Lease: l, Queue: "r", Message: m})
		},
		"Take": func(ctx context.Context) error { _, err := s.Take(ctx, "q", 1, time.Hour); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			require.ErrorIs(t, err, context.DeadlineExceeded, what)
		case <-time.After(time.Minute):
			t.Errorf("%s does not return after its context has ended", what)
		}
		cancel()
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, s.Done(t.Context(), l))
	require.NoError(t, s.Put(t.Context(), "q", m))
	counts, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 1, counts.Messages)
}

func TestSource(t *testing.T) {
	newSchema := schemas(t)
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		pool := connect(t, newSchema(t))
		require.NoError(t, postgres.New(pool).Migrate(t.Context()))
		s := postgres.New(pool)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		n := 0
		q := delivery.NewQueue[string](s, "q", delivery.RetryAfter(time.Minute))
		return deliverytest.Queue[string]{
			Open: func() (delivery.Source[string], error) { return q.Source(nil), nil },
			Put: func(values ...string) (err error) {
				for _, v := range values {
					n++
					err = errors.Join(err, q.Put(t.Context(), v, delivery.ID(strconv.Itoa(n))))
				}
				return err
			},
			Keeps: true, Shared: true,
		}
	}, func(i int) string { return "value " + strconv.Itoa(i) })
}

// Law D3.
func TestEngine_ClockOfTheDatabase(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()), "again")
	s := postgres.New(pool)
	defer s.Close()
	const delay = 200*time.Millisecond + time.Nanosecond
	begun := time.Now() // before the call that begins the delay, or the lease
	require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "a"}, Delay: delay}))
	for round := range 2 {
		var taken []store.Leased
		var asked time.Time
		for len(taken) == 0 {
			var err error
			asked = time.Now()
			taken, err = s.Take(t.Context(), "q", 1, delay)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, time.Since(begun), delay, "early")
		require.Equal(t, uint64(round+1), taken[0].Lease.Fence)
		begun = asked
	}
}

// Laws D1, D5.
func TestKilledAtEachStatement(t *testing.T) {
	storecrash.Run(t, schemas(t), openForCrash)
}

func openForCrash(ctx context.Context, url string, step func()) (store.Inspector, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := postgres.New(pool).Migrate(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	// Transactions of a killed client are rolled back, but not at once.
	const others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
	for n := 1; n > 0; {
		if err := pool.QueryRow(ctx, others).Scan(&n); err != nil {
			pool.Close()
			return nil, err
		}
	}
	s := postgres.New(pool)
	postgres.SetStep(s, step)
	return closing{s, pool}, nil
}

type closing struct {
	*postgres.Engine
	pool *pgxpool.Pool
}

func (c closing) Close() error {
	err := c.Engine.Close()
	c.pool.Close()
	return err
}

// Laws D1, D5: the server is killed while clients put and take.
func TestServerKilled(t *testing.T) {
	server := pgtest.Start(t)
	pool := connect(t, server.URL())
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	const producers, each, kills = 8, 300, 3

	var mu sync.Mutex
	put, done, unknown := map[string]bool{}, map[string]bool{}, map[string]bool{}
	ctx, cancel := context.WithCancel(t.Context())
	var producing, consuming sync.WaitGroup
	for p := range producers {
		producing.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d/%d", p, i)
				for s.Put(ctx, "q", store.Message{Meta: message.Meta{ID: id}}) != nil {
					time.Sleep(10 * time.Millisecond) // the server starts again
				}
				mu.Lock()
				put[id] = true
				mu.Unlock()
			}
		})
	}
	for range 2 {
		consuming.Go(func() {
			for ctx.Err() == nil {
				taken, err := s.Take(ctx, "q", 20, 500*time.Millisecond)
				if err != nil || len(taken) == 0 {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				var leases []store.Lease
				for _, m := range taken {
					leases = append(leases, m.Lease)
				}
				err = s.Done(ctx, leases...)
				lost, isLost := errors.AsType[*store.LeaseError](err)
				mu.Lock()
				for _, m := range taken {
					switch {
					case err != nil && !isLost:
						unknown[m.Meta.ID] = true // the answer was lost with the server
					case !isLost || !slices.Contains(lost.Lost, m.Lease):
						done[m.Meta.ID] = true
					}
				}
				mu.Unlock()
			}
		})
	}
	for range kills {
		time.Sleep(300 * time.Millisecond) // some work between the kills; the amount does not matter
		server.Kill()
		server.Start()
	}
	producing.Wait()
	require.Eventually(t, func() bool {
		c, err := s.Count(t.Context(), "q", store.Filter{})
		return err == nil && c.Messages == 0
	}, 2*time.Minute, 10*time.Millisecond, "messages are left")
	cancel()
	consuming.Wait()
	require.Len(t, put, producers*each)
	for id := range put {
		require.True(t, done[id] || unknown[id], "%s was put and is gone, and no one has settled it", id)
	}
}

// Regression: a transaction of the caller, which waits for a call or keeps one waiting,
// and Close waited for each other for ever.
func TestCloseBesideATransactionThatPuts(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	s := postgres.New(pool)
	require.NoError(t, s.Migrate(t.Context()))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test is over
	// It returns an error if the machine is slow.
	_ = storebench.CloseBesideATransaction(t, s, func(ctx context.Context, id string) error {
		return postgres.Stage(ctx, s, tx, "q", store.Message{Meta: message.Meta{ID: id}})
	})
}
