package sqlite_test

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// found is how late a watcher finds a change of another connection, in the tests' time.
const found = 120 * time.Millisecond

// openWake opens a database in a bubble of synctest, which closes it at its end.
func openWake(t *testing.T, path string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), path, sqlite.WithSynchronousNormal())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	return db
}

// wakes counts the calls of wake for a queue, until the test ends.
type wakes struct {
	count atomic.Int32
	ended chan error
}

// listen waits until the engine listens for a consumer of a queue.
func listen(t *testing.T, s *sqlite.Engine, queue string) *wakes {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &wakes{ended: make(chan error, 1)}
	go func() { // ends with the test, or with the engine
		w.ended <- s.Wake(ctx, queue, func(misses bool) {
			assert.False(t, misses)
			w.count.Add(1)
		})
	}()
	time.Sleep(found)
	require.Positive(t, w.since(), "the first look")
	return w
}

// since returns the wakes since the last call.
func (w *wakes) since() int {
	synctest.Wait()
	return int(w.count.Swap(0))
}

// settle waits until the watcher has looked at the changes so far.
func (w *wakes) settle() {
	time.Sleep(found)
	w.since()
}

func wakeMessage(id string, delay time.Duration) store.Message {
	return store.Message{Meta: message.Meta{ID: id}, Payload: []byte("1"), Delay: delay}
}

// takeOne takes the only message that is due.
func takeOne(t *testing.T, s *sqlite.Engine, queue string, lease time.Duration) store.Lease {
	t.Helper()
	taken, err := s.Take(t.Context(), queue, 10, lease)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	return taken[0].Lease
}

func TestEngineWake_WhenAMessageCanBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqlite.New(openWake(t, filepath.Join(t.TempDir(), "queues.db")))
		w := listen(t, s, "q")
		require.NoError(t, s.Put(t.Context(), "other", wakeMessage("1", 0)))
		require.Zero(t, w.since())
		require.NoError(t, s.Put(t.Context(), "q", wakeMessage("1", 0)))
		require.Positive(t, w.since(), "put")

		lease := takeOne(t, s, "q", time.Minute)
		w.settle()
		require.NoError(t, s.Release(t.Context(), 0, lease))
		require.Positive(t, w.since(), "released")

		lease = takeOne(t, s, "q", time.Minute)
		require.NoError(t, s.Release(t.Context(), 30*time.Millisecond, lease))
		w.since()
		time.Sleep(40 * time.Millisecond)
		require.Positive(t, w.since(), "released with a delay")

		takeOne(t, s, "q", time.Minute)
		w.settle()
		time.Sleep(time.Minute - 2*found)
		require.Zero(t, w.since())
		time.Sleep(2 * found)
		require.Positive(t, w.since(), "the lease has ended")

		lease = takeOne(t, s, "q", time.Minute)
		m := wakeMessage("1", time.Hour)
		require.NoError(t, s.Move(t.Context(), store.Move{Lease: lease, Queue: "q", Message: m}))
		w.settle()
		time.Sleep(time.Hour - 2*found)
		require.Zero(t, w.since())
		time.Sleep(2 * found)
		require.Positive(t, w.since(), "moved with a delay")
	})
}

// A merge, a release and an edit of the due time in a transaction wake the consumers.
func TestEngineWake_MessagesWereEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqlite.New(openWake(t, filepath.Join(t.TempDir(), "queues.db")))
		w := listen(t, s, "q")
		require.NoError(t, s.Put(t.Context(), "q-dead", wakeMessage("1", 0)))
		for _, do := range []store.Action{store.Merge, store.Hold, store.Release, store.Due} {
			w.settle()
			queue := "q"
			if do == store.Merge {
				queue = "q-dead"
			}
			list, err := s.List(t.Context(), queue, store.Filter{}, store.Page{Max: 1})
			require.NoError(t, err)
			require.Len(t, list, 1)
			edit := store.Edit{Do: do, Queue: queue, Entry: list[0], To: "q"}
			require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
				done, err := tx.Edit(ctx, edit)
				assert.Equal(t, []bool{true}, done, do)
				return err
			}))
			if do != store.Hold {
				require.Positive(t, w.since(), do)
			}
			if do == store.Release {
				lease := takeOne(t, s, "q", time.Minute)
				require.NoError(t, s.Release(t.Context(), time.Hour, lease))
			}
		}
	})
}

// A transaction of the caller wakes consumers when it is committed.
func TestEngineWake_PutTx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openWake(t, filepath.Join(t.TempDir(), "queues.db"))
		s := sqlite.New(db)
		q := delivery.NewQueue[string](s, "q", delivery.WithLogger(quiet))
		w := listen(t, s, "q")
		require.NoError(t, db.Write(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
			err := sqlite.PutTx(ctx, tx, q, "a")
			synctest.Wait()
			assert.Zero(t, w.count.Load(), "it is not committed")
			return err
		}))
		require.Positive(t, w.since())
		lease := takeOne(t, s, "q", time.Hour)
		require.NoError(t, s.Done(t.Context(), lease))
		w.settle()

		tx, err := db.Writer().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sqlite.PutTx(t.Context(), tx, q, "b"))
		time.Sleep(time.Second)
		require.Zero(t, w.since(), "it is not committed")
		require.NoError(t, tx.Commit())
		time.Sleep(found)
		require.Positive(t, w.since())
	})
}

// A call that was rolled back wakes no consumer, and the other calls of its transaction do.
func TestEngineWake_RolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openWake(t, filepath.Join(t.TempDir(), "queues.db"))
		s := sqlite.New(db)
		q := delivery.NewQueue[string](s, "q", delivery.WithLogger(quiet))
		w := listen(t, s, "q")
		require.ErrorIs(t, db.Write(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
			assert.NoError(t, sqlite.PutTx(ctx, tx, q, "a"))
			return context.Canceled
		}), context.Canceled)
		time.Sleep(found)
		require.Zero(t, w.since())
	})
}

// Other processes, and other engines of this process, change the file through connections
// of their own. A checkpoint of the log hides none of their changes.
func TestEngineWake_ChangesOfOtherConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "queues.db")
		s := sqlite.New(openWake(t, path))
		otherDB := openWake(t, path)
		other := sqlite.New(otherDB)
		w := listen(t, s, "q")
		last := listen(t, s, "empty")
		for i := range 20 {
			checkpoint := func() {
				_, err := otherDB.Writer().ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)")
				require.NoError(t, err)
			}
			require.NoError(t, other.Put(t.Context(), "q", wakeMessage(strconv.Itoa(i), 0)))
			checkpoint()
			time.Sleep(found)
			require.Positive(t, w.since(), i)
			require.NoError(t, s.Done(t.Context(), takeOne(t, s, "q", time.Minute)))
			w.settle()
			checkpoint()
		}
		require.Zero(t, last.since())

		require.NoError(t, other.Put(t.Context(), "q", wakeMessage("late", time.Hour), wakeMessage("early", time.Minute)))
		time.Sleep(time.Minute - time.Millisecond)
		require.Zero(t, w.since())
		time.Sleep(found)
		require.Positive(t, w.since(), "its delay has ended")
	})
}

// Another process has a clock that is ahead. The clock of the store does not go back, so
// its messages are due by that clock.
func TestEngineWake_ClockOfAnotherProcessIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "queues.db")
		s := sqlite.New(openWake(t, path))
		ahead := clock.NewMock()
		ahead.Set(time.Now().Add(time.Hour))
		other := sqlite.New(openWake(t, path), sqlite.WithClock(ahead))
		w := listen(t, s, "q")
		require.NoError(t, other.Put(t.Context(), "q", wakeMessage("1", 10*time.Second)))
		time.Sleep(10*time.Second - time.Millisecond)
		require.Zero(t, w.since())
		time.Sleep(found)
		require.Positive(t, w.since())
		takeOne(t, s, "q", time.Minute)
	})
}

// A due message that is not taken does not hide another message that becomes due, and its
// consumers are woken again.
func TestEngineWake_BehindAMessageThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqlite.New(openWake(t, filepath.Join(t.TempDir(), "queues.db")))
		w := listen(t, s, "q")
		require.NoError(t, s.Put(t.Context(), "q", wakeMessage("due", 0), wakeMessage("later", 2500*time.Millisecond)))
		time.Sleep(2400 * time.Millisecond)
		require.Positive(t, w.since())
		time.Sleep(found)
		require.Positive(t, w.since(), "later")
		time.Sleep(2 * time.Second)
		require.Positive(t, w.since(), "both")
	})
}

func TestEngineWake_EndsWithTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openWake(t, filepath.Join(t.TempDir(), "queues.db"))
		s, other := sqlite.New(db), sqlite.New(db)
		w, stays := listen(t, s, "q"), listen(t, other, "q")
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-w.ended, store.ErrClosed)
		require.ErrorIs(t, s.Wake(t.Context(), "q", func(bool) {}), store.ErrClosed)
		require.NoError(t, other.Put(t.Context(), "q", wakeMessage("1", 0)))
		require.Positive(t, stays.since())

		require.NoError(t, db.Close())
		require.ErrorContains(t, <-stays.ended, "was closed")
		require.ErrorContains(t, other.Wake(t.Context(), "q", func(bool) {}), "was closed")
	})
}

// When all consumers have gone, the watcher ends. It starts again with the next one.
func TestEngineWake_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sqlite.New(openWake(t, filepath.Join(t.TempDir(), "queues.db")))
		for i := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			ended, woken := make(chan error, 1), make(chan bool, 100)
			go func() { ended <- s.Wake(ctx, "q", func(misses bool) { woken <- misses }) }()
			require.False(t, <-woken)
			require.NoError(t, s.Put(t.Context(), "q", wakeMessage(strconv.Itoa(i), 0)))
			require.False(t, <-woken)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.NoError(t, s.Done(t.Context(), takeOne(t, s, "q", time.Minute)))
		}
	})
}

// An engine with a clock of its own does not know when to look: consumers poll as well.
func TestEngineWake_WithClock(t *testing.T) {
	s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")), sqlite.WithClock(clock.NewMock()))
	ctx, cancel := context.WithCancel(t.Context())
	ended, woken := make(chan error, 1), make(chan bool, 100)
	go func() { ended <- s.Wake(ctx, "q", func(misses bool) { woken <- misses }) }()
	require.True(t, <-woken)
	require.NoError(t, s.Put(t.Context(), "q", wakeMessage("1", 0)))
	require.True(t, <-woken)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// The watcher does not look at queues whose consumers all have clocks of their own, so it
// must not sleep until their messages are due either: it would not sleep any more after
// that time.
func TestEngineWake_DelayedMessageForAnEngineWithClock(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	plain, own := sqlite.New(db), sqlite.New(db, sqlite.WithClock(clock.NewMock()))
	consume := func(s *sqlite.Engine, queue string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended, woken := make(chan error, 1), make(chan bool, 100)
		go func() { ended <- s.Wake(ctx, queue, func(misses bool) { woken <- misses }) }() // ends with ctx
		<-woken
		return func() {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		}
	}
	defer consume(plain, "watched")()
	defer consume(own, "polled")()
	require.NoError(t, own.Put(t.Context(), "polled", wakeMessage("1", time.Hour)))
	require.NotContains(t, sqlite.QueuesToLookAt(db), "polled")
	require.NoError(t, plain.Put(t.Context(), "watched", wakeMessage("1", time.Hour)))
	becomesPlanned := func(queue string) {
		require.Eventually(t, func() bool { return slices.Contains(sqlite.QueuesToLookAt(db), queue) }, time.Minute, time.Millisecond)
	}
	becomesPlanned("watched")

	stop := consume(plain, "polled")
	becomesPlanned("polled")
	stop()
	require.NotContains(t, sqlite.QueuesToLookAt(db), "polled", "its last watched consumer has gone")
}

func TestEngineWake_TablesAreMissing(t *testing.T) {
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer db.Close()
	require.ErrorContains(t, sqlite.New(db).Wake(t.Context(), "q", func(bool) {}), "Migrate")
}

// takes counts the calls of Take.
type takes struct {
	*sqlite.Engine
	count *atomic.Int32
}

func (t takes) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	t.count.Add(1)
	return t.Engine.Take(ctx, queue, limit, lease)
}

// Consumers of idle queues do not poll, also while other queues are used.
func TestQueueReceive_IdleOnSQLite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := takes{sqlite.New(openWake(t, filepath.Join(t.TempDir(), "queues.db"))), new(atomic.Int32)}
		ctx, cancel := context.WithCancel(t.Context())
		received := make(chan int, 10)
		for i := range 20 {
			name := "q" + strconv.Itoa(i)
			source := delivery.NewQueue[int](s, name, delivery.WithLogger(quiet)).Source(nil)
			go func() { // ends with ctx
				for {
					ms, err := source.Receive(ctx, 10)
					if err != nil {
						break
					}
					for _, m := range ms {
						received <- m.Value
						m.Ack()
					}
				}
				received <- 0
			}()
			t.Cleanup(func() { assert.NoError(t, source.Close(context.WithoutCancel(ctx))) })
		}
		time.Sleep(time.Second)
		s.count.Store(0)
		time.Sleep(time.Minute)
		require.Zero(t, s.count.Load(), "they poll")

		begun := time.Now()
		for i := range 10 {
			require.NoError(t, s.Put(t.Context(), "q7", wakeMessage(strconv.Itoa(i), time.Duration(i)*time.Second)))
			require.Equal(t, 1, <-received)
		}
		require.Less(t, time.Since(begun), 46*time.Second)
		require.Less(t, s.count.Load(), int32(100), "they poll")
		cancel()
		for range 20 {
			require.Zero(t, <-received)
		}
	})
}
