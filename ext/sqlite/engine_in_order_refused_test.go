package sqlite_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// keyed returns a message with a key.
func keyed(id, key string) store.Message {
	return store.Message{Meta: message.Meta{ID: id, Key: key}, Payload: []byte(strconv.Quote(id))}
}

// A worker of an earlier version settles the head, and a message of the key is taken before
// the next sweep: the parked message becomes the head, and is due.
func TestEngineTakeInOrder_ParkedMessageBecomesHeadBeforeTheSweep(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	mock := clock.NewMock()
	s := sqlite.New(db, sqlite.WithClock(mock))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("a1", "a"), keyed("a2", "a")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	_, err = db.Writer().ExecContext(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'")
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "q", keyed("a3", "a")))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour) // the sweep is not due yet
	require.NoError(t, err)
	for i := 0; i < 100 && len(taken) == 0; i++ {
		mock.Add(10 * time.Second)
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
	}
	var at, head int64
	require.NoError(t, db.Reader().QueryRowContext(t.Context(), "SELECT at, head FROM weir_messages WHERE meta->>'id' = 'a2'").Scan(&at, &head))
	require.Len(t, taken, 1, "a2 and a3 are never delivered: a2 has at=%d head=%d", at, head)
}

// refuseUpdates makes the database refuse to change some messages.
func refuseUpdates(t *testing.T, db *sqlite.DB, when string) {
	t.Helper()
	_, err := db.Writer().ExecContext(t.Context(), "CREATE TRIGGER refuse BEFORE UPDATE ON weir_messages WHEN "+when+
		" BEGIN SELECT RAISE(ABORT, 'not this one'); END")
	require.NoError(t, err)
}

// Law D4: the database refuses to change the first message of a key with many messages. The
// messages of other keys are taken.
func TestEngineTakeInOrder_RefusedFirstOfALargeKey(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s := sqlite.New(db, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("bad", "a")))
	for i := range 12 {
		var ms []store.Message
		for j := range 100 {
			ms = append(ms, keyed(fmt.Sprint("a", i, "-", j), "a"))
		}
		require.NoError(t, s.Put(t.Context(), "q", ms...))
	}
	refuseUpdates(t, db, "OLD.meta->>'id' = 'bad'")
	require.NoError(t, s.Put(t.Context(), "q", keyed("other", "b")))
	for call := range 200 {
		taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err, "call %d", call)
		if len(taken) > 0 {
			require.Equal(t, "other", taken[0].Meta.ID)
			return
		}
	}
	t.Fatal("other was never taken")
}

// Law D4: the database refuses to change the message behind the head. The head is removed
// when it is done.
func TestEngineTakeInOrder_DoneOfTheMessageBeforeARefusedOne(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	s := sqlite.New(db, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("good", "a"), keyed("bad", "a")))
	refuseUpdates(t, db, "OLD.meta->>'id' = 'bad'")
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "good", taken[0].Meta.ID)
	require.NoError(t, s.Done(t.Context(), taken[0].Lease), "Done of good fails because bad is refused")
}

// The sweep meets a parked message that the database refuses to change: other keys are
// taken.
func TestEngineTakeInOrder_SweepOfARefusedMessage(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	mock := clock.NewMock()
	s := sqlite.New(db, sqlite.WithClock(mock), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("a1", "a"), keyed("bad", "a")))
	_, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	_, err = db.Writer().ExecContext(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'")
	require.NoError(t, err)
	refuseUpdates(t, db, "OLD.meta->>'id' = 'bad'")
	require.NoError(t, s.Put(t.Context(), "q", keyed("other", "b")))
	mock.Add(10 * time.Second)
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
}

// Law D4: a worker of a queue delivers the messages of other keys, although the database
// refuses to change the first message of a key.
func TestQueueWithOrdered_RefusedFirstOfALargeKey(t *testing.T) {
	for name, opts := range map[string][]delivery.QueueOption{"plain": nil, "ordered": {delivery.WithOrdered()}} {
		t.Run(name, func(t *testing.T) {
			e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queues.db"), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer e.Close()
			ms := []store.Message{keyed("bad", "a")}
			for i := range 1200 {
				ms = append(ms, keyed(fmt.Sprint("a", i), "a"))
			}
			require.NoError(t, e.Put(t.Context(), "orders", ms...))
			require.NoError(t, e.Put(t.Context(), "orders", keyed("other", "b")))
			refuseUpdates(t, e.DB(), "OLD.meta->>'id' = 'bad'")
			orders := delivery.NewQueue[string](e, "orders", append(opts, delivery.WithLogger(quiet))...)
			called := make(chan bool, 1)
			op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, id string) (string, error) {
				if id == "other" {
					called <- true
				}
				return id, nil
			}), time.Minute, 5, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := delivery.Run(ctx, orders, op, acknowledge{}, delivery.WithLogger(quiet))
				ended <- err
			}()
			select {
			case <-called:
				stop()
				require.NoError(t, <-ended)
			case err := <-ended:
				stop()
				t.Fatal("Run ended:", err)
			case <-time.After(2 * time.Minute):
				stop()
				t.Fatal("the message of the other key was not delivered in time; Run: ", <-ended)
			}
		})
	}
}

// The database refuses to remove a message. Its worker sets it aside, so the next message
// of the key is delivered.
func TestEngineTakeInOrder_SetAsideMessage(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "queues.db"))
	mock := clock.NewMock()
	s := sqlite.New(db, sqlite.WithClock(mock))
	defer s.Close()
	require.NoError(t, s.Put(t.Context(), "q", keyed("bad", "a"), keyed("next", "a"), keyed("last", "a")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.NoError(t, s.Release(t.Context(), storearg.ForGood, taken[0].Lease))
	for _, id := range []string{"next", "last"} {
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, id, taken[0].Meta.ID)
		require.NoError(t, s.Done(t.Context(), taken[0].Lease))
	}
}
