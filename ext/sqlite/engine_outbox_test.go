package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

func TestLocks(t *testing.T) {
	deliverytest.RunLocks(t, func(t *testing.T) deliverytest.LockSetup {
		mock := clock.NewMock()
		mock.Set(time.Unix(1_700_000_000, 0))
		path := filepath.Join(t.TempDir(), "locks.db")
		return deliverytest.LockSetup{
			Open: func() (lock.Locks, error) {
				return sqlite.New(open(t, path), sqlite.WithClock(mock)).Locks(), nil
			},
			Wait: mock.Add,
		}
	})
}

// Law W3: the row of an unused name is removed, but its fencing numbers keep rising.
func TestLocksForgetNames(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(1_700_000_000, 0))
	db := open(t, filepath.Join(t.TempDir(), "locks.db"))
	l := sqlite.New(db, sqlite.WithClock(mock)).Locks()
	acquire := func(name string) lock.Grant {
		g, err := l.Acquire(t.Context(), name, "me", time.Minute)
		require.NoError(t, err)
		return g
	}
	for range 7 {
		require.NoError(t, l.Release(t.Context(), acquire("a")))
	}
	killed := acquire("killed")
	for i := range 1500 {
		acquire("name " + strconv.Itoa(i))
	}
	mock.Add(24 * time.Hour)
	require.NoError(t, l.Extend(t.Context(), killed, time.Minute), "nobody else has it")
	mock.Add(2 * time.Minute)
	kept := acquire("kept") // all old rows are removed, in steps
	acquire("kept, too")
	var rows int
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM weir_locks WHERE name <> ''").Scan(&rows))
	require.Equal(t, 3, rows)
	require.Greater(t, acquire("a").Fence, uint64(7))
	require.NoError(t, l.Extend(t.Context(), kept, time.Minute))
	mock.Add(25 * time.Hour)
	acquire("b")
	require.ErrorIs(t, l.Extend(t.Context(), killed, time.Minute), lock.ErrLost)
	require.Greater(t, acquire("a").Fence, uint64(8), "twice")
}

// A stale owner's write is refused in its transaction.
func TestGuard(t *testing.T) {
	mock := clock.NewMock()
	db := open(t, filepath.Join(t.TempDir(), "locks.db"))
	_, err := db.Writer().ExecContext(t.Context(), "CREATE TABLE writes (owner TEXT)")
	require.NoError(t, err)
	s := sqlite.New(db, sqlite.WithClock(mock))
	locks := s.Locks()
	write := func(g lock.Grant) error {
		return db.Write(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO writes VALUES (?)", g.Owner); err != nil {
				return err
			}
			return s.Guard(ctx, tx, g)
		})
	}
	first, err := locks.Acquire(t.Context(), "a", "first", time.Second)
	require.NoError(t, err)
	require.NoError(t, write(first))
	mock.Add(2 * time.Second)
	require.NoError(t, write(first), "no one else has it")
	second, err := locks.Acquire(t.Context(), "a", "second", time.Second)
	require.NoError(t, err)
	require.ErrorIs(t, write(first), lock.ErrLost)
	require.NoError(t, write(second))
	require.NoError(t, locks.Release(t.Context(), second))
	require.ErrorIs(t, write(second), lock.ErrLost)
	var n int
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM writes").Scan(&n))
	require.Equal(t, 3, n)
}

// A staged message is in the queue if, and only if, its transaction was committed.
func TestStage(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s := sqlite.New(db)
	defer s.Close()
	message := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id}, Payload: []byte(id)} }
	taken := func() (ids []string) {
		t.Helper()
		ms, err := s.Take(t.Context(), "outbox", 10, time.Minute)
		require.NoError(t, err)
		for _, m := range ms {
			ids = append(ids, m.Meta.ID)
		}
		return ids
	}
	for _, commit := range []bool{true, false} {
		tx, err := db.Writer().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sqlite.Stage(t.Context(), s, tx, "outbox", message(fmt.Sprint("commit: ", commit))))
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
	}
	require.Equal(t, []string{"commit: true"}, taken())

	failed := errors.New("failed")
	for _, err := range []error{nil, failed} {
		require.ErrorIs(t, db.Write(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
			if err := sqlite.Stage(ctx, s, tx, "outbox", message(fmt.Sprint("error: ", err))); err != nil {
				return err
			}
			return err
		}), err)
	}
	require.Equal(t, []string{"error: <nil>"}, taken())
	require.Error(t, sqlite.Stage(t.Context(), s, &sql.Tx{}, "outbox", message("")))
}

const envRelay = "WEIR_RELAY_CHILD"

// relayChild publishes to a file, and kills itself at a step.
func relayChild() {
	dir := os.Getenv(envRelay)
	if dir == "" {
		return
	}
	last, _ := strconv.Atoi(os.Getenv(envRelay + "_STEP"))
	err := func() error {
		ctx := context.Background()
		db, err := sqlite.OpenDB(ctx, filepath.Join(dir, "queues.db"))
		if err != nil {
			return err
		}
		out, err := os.OpenFile(filepath.Join(dir, "published"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		s := sqlite.New(db)
		var steps atomic.Int64
		step := func() {
			if steps.Add(1) == int64(last) {
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					_ = self.Kill()
				}
				select {}
			}
		}
		sqlite.SetStep(s, step)
		ctx, cancel := context.WithCancel(ctx)
		return outbox.Relay(ctx, s, s.Locks(), outbox.Config{
			Queue: "outbox", Batch: 4, Lease: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Publish: func(ctx context.Context, ms []store.Message) error {
				step()
				for _, m := range ms {
					if m.Meta.ID == "last" {
						defer cancel()
					}
					if _, err := fmt.Fprintln(out, m.Meta.ID); err != nil {
						return err
					}
				}
				step()
				return nil
			},
		})
	}()
	if !errors.Is(err, context.Canceled) {
		fmt.Println(err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Law D1: relays are killed at each step, one after the other, at their statements and
// between them.
func TestRelaysKilled(t *testing.T) {
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "queues.db"))
	s := sqlite.New(db)
	defer s.Close()
	const messages, kills = 60, 12
	for i := range messages {
		require.NoError(t, s.Put(t.Context(), "outbox", store.Message{Meta: message.Meta{ID: strconv.Itoa(i)}}))
	}
	require.NoError(t, s.Put(t.Context(), "outbox", store.Message{Meta: message.Meta{ID: "last"}}))
	for step := 1; ; step++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		at := step
		if step > kills {
			at = -1
		}
		cmd.Env = append(os.Environ(), envRelay+"="+dir, envRelay+"_STEP="+strconv.Itoa(at))
		out, err := cmd.Output()
		if err == nil {
			break
		}
		exit, _ := errors.AsType[*exec.ExitError](err)
		require.NotNil(t, exit, "%v", err)
		require.Equal(t, -1, exit.ExitCode(), "%s", out)
		require.LessOrEqual(t, step, kills)
	}
	file, err := os.Open(filepath.Join(dir, "published"))
	require.NoError(t, err)
	defer file.Close()
	seen := map[string]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		seen[lines.Text()]++
	}
	require.Len(t, seen, messages+1)
}

func TestEngine_MergeIntoTheOutboxWhileTheSameIDIsPublished(t *testing.T) {
	s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")))
	defer s.Close()
	storebench.Merged(t, s, s.Locks())
}
