package sqlite_test

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

var quiet = slog.New(slog.DiscardHandler)

// writeLock takes the write lock of a file, as another process does, until the test ends
// or the transaction is rolled back.
func writeLock(t *testing.T, file string) *sql.Tx {
	t.Helper()
	other, err := sqlite.OpenDB(t.Context(), file)
	require.NoError(t, err)
	tx, err := other.Writer().BeginTx(context.WithoutCancel(t.Context()), nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = tx.Rollback()
		assert.NoError(t, other.Close())
	})
	return tx
}

// While another process writes, each call ends with its context.
func TestEngine_CallsEndWithTheirContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(quiet))
	require.NoError(t, err)
	m := store.Message{Meta: message.Meta{ID: "1"}, Payload: []byte("1")}
	require.NoError(t, e.Put(t.Context(), "q", m, store.Message{Meta: message.Meta{ID: "2"}}))
	taken, err := e.Take(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)
	lease := taken[0].Lease
	grant, err := e.Locks().Acquire(t.Context(), "lock", "me", time.Hour)
	require.NoError(t, err)
	other := writeLock(t, file)
	for name, call := range map[string]func(ctx context.Context) error{
		"Put":     func(ctx context.Context) error { return e.Put(ctx, "q", m) },
		"Take":    func(ctx context.Context) error { _, err := e.Take(ctx, "q", 1, time.Hour); return err },
		"Extend":  func(ctx context.Context) error { return e.Extend(ctx, time.Hour, lease) },
		"Done":    func(ctx context.Context) error { return e.Done(ctx, lease) },
		"Release": func(ctx context.Context) error { return e.Release(ctx, 0, lease) },
		"Move":    func(ctx context.Context) error { return e.Move(ctx, store.Move{Lease: lease, Queue: "r", Message: m}) },
		"Claim": func(ctx context.Context) error {
			_, err := e.Claim(ctx, "q", store.Filter{}, store.Page{Max: 1}, time.Hour)
			return err
		},
		"Purge": func(ctx context.Context) error { _, err := e.Purge(ctx, "q", store.Filter{}); return err },
		"Amend": func(ctx context.Context) error { return e.Amend(ctx, lease, store.Amendment{Delay: time.Minute}) },
		"Update": func(ctx context.Context) error {
			return e.Update(ctx, func(context.Context, store.Tx) error { return nil })
		},
		"Acquire": func(ctx context.Context) error { _, err := e.Locks().Acquire(ctx, "b", "me", time.Hour); return err },
		"Renew":   func(ctx context.Context) error { return e.Locks().Extend(ctx, grant, time.Hour) },
		"Unlock":  func(ctx context.Context) error { return e.Locks().Release(ctx, grant) },
		"Migrate": func(ctx context.Context) error { return e.Migrate(ctx) },
		"Write": func(ctx context.Context) error {
			return e.DB().Write(ctx, func(context.Context, *sqlite.Tx) error {
				t.Error("the function runs without the write lock")
				return nil
			})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		begun := time.Now()
		err := call(ctx)
		cancel()
		if name != "Migrate" { // it has no work to do
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
		}
		require.Less(t, time.Since(begun), 5*time.Second, name)
	}

	// So Close has no calls to wait for.
	begun := time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(begun), 2*time.Second)
	require.NoError(t, other.Rollback())
}

// Calls that share a transaction leave one by one, and the remaining calls succeed.
func TestDBWrite_SomeContextsEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.db")
	db, err := sqlite.OpenDB(t.Context(), file)
	require.NoError(t, err)
	defer db.Close()
	other := writeLock(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	left, stays := make(chan error, 5), make(chan error, 5)
	write := func(ctx context.Context, ended chan<- error) {
		ended <- db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS a (b)")
			return err
		})
	}
	for range 5 {
		go write(ctx, left)
		go write(t.Context(), stays)
	}
	cancel()
	for range 5 {
		require.ErrorIs(t, <-left, context.Canceled)
	}
	require.Empty(t, stays)
	require.NoError(t, other.Rollback())
	for range 5 {
		require.NoError(t, <-stays)
	}
}

// Close has a bound, even while a call without a deadline waits.
func TestEngineClose_AnotherProcessWrites(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(quiet), sqlite.WithBusyTimeout(6*time.Second))
	require.NoError(t, err)
	other := writeLock(t, file)
	put := make(chan error, 1)
	go func() {
		put <- e.Put(context.WithoutCancel(t.Context()), "q", store.Message{Meta: message.Meta{ID: "1"}})
	}()
	time.Sleep(100 * time.Millisecond) // not a guess: whether Put has begun or not, it waits or is refused
	begun := time.Now()
	err = e.Close()
	if err != nil {
		require.ErrorContains(t, err, "another process writes")
	}
	require.Less(t, time.Since(begun), 5*time.Second)
	require.ErrorContains(t, <-put, "", "it ends by the busy timeout")
	require.Less(t, time.Since(begun), 20*time.Second)
	require.NoError(t, other.Rollback())
	require.Eventually(t, func() bool { return e.Close() == nil }, time.Minute, 10*time.Millisecond)
}

// Hold returns soon after its function, although the lock cannot be released.
func TestHold_AnotherProcessWrites(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(quiet))
	require.NoError(t, err)
	defer e.Close()
	var ended time.Time
	err = lock.Hold(t.Context(), e.Locks(), "job", "me", time.Minute, func(context.Context, lock.Grant) error {
		writeLock(t, file)
		ended = time.Now()
		return nil
	})
	require.ErrorContains(t, err, "is held until its lease ends")
	require.Less(t, time.Since(ended), 8*time.Second)
}

// A call returns an error when the busy timeout has passed.
func TestWithBusyTimeout_AnotherProcessWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(quiet), sqlite.WithBusyTimeout(50*time.Millisecond))
	require.NoError(t, err)
	defer e.Close()
	writeLock(t, file)
	begun := time.Now()
	require.ErrorContains(t, e.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "1"}}), "locked")
	require.Less(t, time.Since(begun), 5*time.Second)
}

// Ctrl-C ends a worker within its drain, although its settlements cannot be recorded
// while another process writes. Its messages are redelivered.
func TestRun_AnotherProcessWrites(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "queues.db")
	e, err := sqlite.Open(t.Context(), file, sqlite.WithLogger(quiet))
	require.NoError(t, err)
	q := delivery.NewQueue[string](e, "q", delivery.WithLogger(quiet))
	for range 10 {
		require.NoError(t, q.Put(t.Context(), "v"))
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	called := make(chan struct{})
	proceed := make(chan struct{})
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, string) (string, error) {
		called <- struct{}{}
		<-proceed
		return "", nil
	}), time.Minute, 5, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
	ended := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, q, op, acknowledge{}, delivery.WithLogger(quiet), delivery.WithDrain(time.Second))
		ended <- err
	}()
	for range 5 {
		<-called
	}
	other := writeLock(t, file)
	interrupt()
	close(proceed)
	begun := time.Now()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the worker has not ended")
	}
	require.NoError(t, e.Close())
	t.Logf("the worker ended after %v", time.Since(begun))
	require.Less(t, time.Since(begun), 8*time.Second)
	require.NoError(t, other.Rollback())
}
