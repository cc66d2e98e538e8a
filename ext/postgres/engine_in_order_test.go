//go:build unix

package postgres_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
)

// The statements of TakeInOrder find the head and the first message of a key by an index,
// and read no other message of the key.
func TestEngineTakeInOrder_UsesAnIndex(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta)
		SELECT 'q', now, now, now, 0, 0, '', jsonb_build_object('id', n::text, 'key', CASE WHEN n % 20 = 0 THEN n::text ELSE 'flood' END)
		FROM generate_series(1, 20000) AS n, (SELECT clock_timestamp() AS now) AS clock`)
	require.NoError(t, err)
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	for round := range 8 {
		if round == 4 {
			_, err := pool.Exec(t.Context(), "ANALYZE weir_messages")
			require.NoError(t, err)
		}
		mock.Add(time.Minute) // it looks for keys without a head
		plans()
		taken, err := s.TakeInOrder(t.Context(), "q", 100, time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, taken)
		leases := make([]store.Lease, len(taken))
		for i := range taken {
			leases[i] = taken[i].Lease
		}
		next := taken[0].Message
		next.Meta.Visit++
		require.NoError(t, s.Replace(t.Context(), store.Replacement{Lease: leases[0], Message: next}))
		require.NoError(t, s.Done(t.Context(), leases[1:]...))
		_, err = s.Purge(t.Context(), "q", store.Filter{IDs: []string{taken[0].Meta.ID}})
		require.NoError(t, err)
		plan := plans()
		require.Contains(t, plan, "weir_messages_head", round)
		require.Contains(t, plan, "weir_messages_order", round)
		require.NotContains(t, plan, "Seq Scan on weir_messages", round)
	}
}

// A program of an earlier version removes a message, and does not free the messages that
// are parked behind it.
func TestEngineTakeInOrder_HeadRemovedByAnEarlierVersion(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	mock := clock.NewMock()
	postgres.SetClock(s, mock)
	for _, key := range []string{"a", "b"} {
		for _, id := range []string{"1", "2", "3"} {
			require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: key + id, Key: key}}))
		}
	}
	takeOne := func() store.Leased {
		t.Helper()
		taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		return taken[0]
	}
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 2)
	_, err = pool.Exec(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'a1'")
	require.NoError(t, err)
	none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none, "it has looked a short time ago")
	mock.Add(10 * time.Second)
	got := takeOne()
	require.Equal(t, "a2", got.Meta.ID)
	require.NoError(t, s.Done(t.Context(), got.Lease))
	require.Equal(t, "a3", takeOne().Meta.ID)
}

// A message that was put before the head of its key, and committed after the head was
// taken, waits for the head: one message of a key is in flight at a time.
func TestEngineTakeInOrder_EarlierPositionIsCommittedLate(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	of := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id, Key: "a"}} }
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was committed
	require.NoError(t, postgres.Stage(t.Context(), s, tx, "q", of("late")))
	require.NoError(t, s.Put(t.Context(), "q", of("head"), of("next")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "head", taken[0].Meta.ID)
	require.NoError(t, tx.Commit(t.Context()))
	for range 2 {
		none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Empty(t, none)
	}
	for _, want := range []string{"late", "next"} {
		require.NoError(t, s.Done(t.Context(), taken[0].Lease))
		taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Equal(t, want, taken[0].Meta.ID)
	}
}

// While a transaction removes the head of a key, no message is parked behind it, since
// the transaction could not see and free that message.
func TestEngineTakeInOrder_HeadIsBeingRemoved(t *testing.T) {
	pool := connect(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	of := func(id string) store.Message { return store.Message{Meta: message.Meta{ID: id, Key: "a"}} }
	require.NoError(t, s.Put(t.Context(), "q", of("head")))
	taken, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was committed
	_, err = tx.Exec(t.Context(), "DELETE FROM weir_messages WHERE meta->>'id' = 'head'")
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "q", of("next")))
	none, err := s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, tx.Commit(t.Context()))
	taken, err = s.TakeInOrder(t.Context(), "q", 10, time.Hour)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, "next", taken[0].Meta.ID)
}

func TestEngineTakeInOrder_KeysBehindAFlood(t *testing.T) {
	pool, plans := explained(t, schemas(t)(t))
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	s := postgres.New(pool)
	defer s.Close()
	setAge := func(age string) {
		_, err := pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION aged_now() RETURNS timestamptz LANGUAGE plpgsql AS
			$$ BEGIN RETURN clock_timestamp() + interval '`+age+`'; END $$`)
		require.NoError(t, err)
	}
	setAge("0 s")
	postgres.SetNow(s, "aged_now()") // the engine reads it on goroutines of its own
	plans()
	storebench.KeysBehindAFlood(t, s, func() (n int) {
		plan := plans()
		require.NotContains(t, plan, "Seq Scan on weir_messages")
		require.NotRegexp(t, `weir_messages_at on [^\n]*\n[^\n]*\n *Filter`, plan, "it reads all messages that are due")
		n = parkedIn(t, pool)
		_, err := pool.Exec(t.Context(), "ANALYZE weir_messages") // as autovacuum does
		require.NoError(t, err)
		plans()
		return n
	}, func() { setAge("2 s") })
}

// parkedIn returns how many messages of a database are parked.
func parkedIn(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM weir_messages WHERE at = '9999-12-30 00:00:00+00'").Scan(&n))
	return n
}

// lateTest is a queue q whose calls of TakeInOrder begin after a floor: four seconds ago
// three messages of a key were put, and two of them are parked.
type lateTest struct {
	*testing.T

	pool  *pgxpool.Pool
	s     *postgres.Engine
	clock *clock.Mock
	woken chan struct{}
}

// newLateTest returns a test. before is called before the messages of the key are put.
func newLateTest(t *testing.T, before func(l *lateTest)) *lateTest {
	t.Helper()
	l := &lateTest{T: t, pool: connect(t, schemas(t)(t)), clock: clock.NewMock(), woken: make(chan struct{}, 1)}
	require.NoError(t, postgres.New(l.pool).Migrate(t.Context()))
	l.s = postgres.New(l.pool)
	t.Cleanup(func() { l.s.Close() })
	postgres.SetClock(l.s, l.clock)
	postgres.OnWake(l.s, "q", func() {
		select {
		case l.woken <- struct{}{}:
		default:
		}
	})
	l.setNow(0)
	before(l)
	l.put("head", "a", "a1", "a", "a2", "a")
	l.setNow(4 * time.Second)
	require.Equal(t, "head", l.take())
	require.Empty(t, l.take(), "the others of the key are parked")
	return l
}

// setNow sets the time of the database's clock since the test has begun.
func (l *lateTest) setNow(since time.Duration) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(since)
	postgres.SetNow(l.s, "timestamptz '"+at.Format(time.RFC3339Nano)+"'")
}

// put puts messages, given by their ids and keys.
func (l *lateTest) put(idsAndKeys ...string) {
	l.Helper()
	for pair := range slices.Chunk(idsAndKeys, 2) {
		require.NoError(l, l.s.Put(l.Context(), "q", keyed(pair[0], pair[1])))
	}
}

// stage puts a message without a key in a transaction of its own.
func (l *lateTest) stage(id string) pgx.Tx {
	l.Helper()
	tx, err := l.pool.Begin(l.Context())
	require.NoError(l, err)
	l.Cleanup(func() { tx.Rollback(context.Background()) }) //nolint:errcheck // it was committed
	require.NoError(l, postgres.Stage(l.Context(), l.s, tx, "q", keyed(id, "")))
	return tx
}

// take takes a message, and returns its id, or "".
func (l *lateTest) take() string {
	l.Helper()
	taken, err := l.s.TakeInOrder(l.Context(), "q", 1, time.Hour)
	require.NoError(l, err)
	if len(taken) == 0 {
		return ""
	}
	return taken[0].Meta.ID
}

// passSecond lets a second pass, and waits until the store wakes consumers.
func (l *lateTest) passSecond() {
	l.Helper()
	select {
	case <-l.woken: // by a put
	default:
	}
	l.clock.Add(time.Second)
	select {
	case <-l.woken:
	case <-time.After(time.Minute):
		l.Fatal("consumers are not woken")
	}
}

// A call of TakeInOrder begins after the messages that were parked before. A message whose
// transaction is committed late comes before them. The store wakes consumers within a
// second, and the next call returns it, whether other messages are due or not.
func TestEngineTakeInOrder_CommittedBeforeParkedMessages(t *testing.T) {
	var first, second pgx.Tx
	l := newLateTest(t, func(l *lateTest) { first, second = l.stage("first"), l.stage("second") })
	require.NoError(t, first.Commit(t.Context()))
	require.Empty(t, l.take())
	l.passSecond()
	require.Equal(t, "first", l.take())
	require.Empty(t, l.take(), "it looks for others that come before the parked messages")
	require.NoError(t, second.Commit(t.Context()))
	l.put("b1", "b", "c1", "c")
	require.Equal(t, "b1", l.take())
	l.passSecond()
	require.Equal(t, "second", l.take())
	require.Equal(t, "c1", l.take())
}

// A message whose transaction is committed within a second after the put is taken at once,
// although messages that were put later are parked.
func TestEngineTakeInOrder_CommittedWithinASecond(t *testing.T) {
	l := newLateTest(t, func(*lateTest) {})
	l.setNow(60100 * time.Millisecond)
	late := l.stage("late")
	l.put("a3", "a")
	l.setNow(61 * time.Second)
	require.Empty(t, l.take(), "the other is parked")
	require.NoError(t, late.Commit(t.Context()))
	require.Equal(t, "late", l.take())
}

// While a key gets messages all the time, each is parked soon after it was put. Later calls
// do not read the entries that all of them have left in the index.
func TestEngineTakeInOrder_FloorFollowsFreshMessages(t *testing.T) {
	l := newLateTest(t, func(*lateTest) {})
	l.setNow(10 * time.Second)
	late := l.stage("late")
	l.setNow(20 * time.Second)
	l.put("a3", "a")
	require.Empty(t, l.take(), "the other is parked")
	require.NoError(t, late.Commit(t.Context()))
	require.Empty(t, l.take(), "a call begins a second before the message that was parked")
	l.passSecond()
	require.Equal(t, "late", l.take())
}

// While a call takes a message, another call parks a message behind it. The message that
// was taken does not count as one before the floor, for which a call would read the entries
// of all parked messages.
func TestEngineTakeInOrder_ParkedBehindARunningCall(t *testing.T) {
	var late pgx.Tx
	l := newLateTest(t, func(l *lateTest) { late = l.stage("late") })
	l.put("first", "")
	steps := 0
	postgres.SetStep(l.s, func() {
		steps++
		if steps == 2 { // the first message is locked
			l.setNow(20 * time.Second)
			l.put("a3", "a")
			require.Empty(t, l.take(), "the other is parked")
		}
	})
	require.Equal(t, "first", l.take())
	require.NoError(t, late.Commit(t.Context()))
	require.Empty(t, l.take(), "the call begins with the first message")
	l.passSecond()
	require.Equal(t, "late", l.take())
}

// The look before the floor fails. The next call begins with the first message.
func TestEngineTakeInOrder_LookBeforeTheFloorFails(t *testing.T) {
	var late pgx.Tx
	l := newLateTest(t, func(l *lateTest) { late = l.stage("late") })
	require.NoError(t, late.Commit(t.Context()))
	require.Empty(t, l.take())
	postgres.SetNow(l.s, "no_such_function()")
	l.passSecond()
	l.setNow(4 * time.Second)
	require.Equal(t, "late", l.take())
}

// Other calls have locked a message that is due after the floor, and leave it as it is.
// Consumers look for it again.
func TestEngineTakeInOrder_LockedAfterTheFloor(t *testing.T) {
	l := newLateTest(t, func(*lateTest) {})
	l.put("locked", "")
	tx, err := l.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was rolled back
	_, err = tx.Exec(t.Context(), "SELECT FROM weir_messages WHERE meta->>'id' = 'locked' FOR UPDATE")
	require.NoError(t, err)
	require.Empty(t, l.take())
	require.Equal(t, 100*time.Millisecond, postgres.Noted(l.s, "q"))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, "locked", l.take())
	require.Empty(t, l.take())
}

// Many messages that come before the parked ones, such as after a hold, are taken before
// others, although each call takes one. An engine that has released them returns them at
// once, and another one within a second.
func TestEngineTakeInOrder_ManyBeforeParkedMessages(t *testing.T) {
	hold := func(s *postgres.Engine, do store.Action) {
		list, err := s.List(t.Context(), "q", store.Filter{IDs: []string{"1", "2", "3"}}, store.Page{Max: 10})
		require.NoError(t, err)
		require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			for _, e := range list {
				_, err := tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: e})
				require.NoError(t, err)
			}
			return nil
		}))
	}
	for _, isOther := range []bool{false, true} {
		l := newLateTest(t, func(l *lateTest) {
			l.put("1", "", "2", "", "3", "")
			hold(l.s, store.Hold)
		})
		releasing := l.s
		if isOther {
			releasing = postgres.New(l.pool)
			defer releasing.Close()
		}
		hold(releasing, store.Release)
		l.put("4", "", "5", "", "6", "", "7", "")
		if isOther {
			require.Equal(t, "4", l.take())
			l.passSecond()
		}
		for _, want := range []string{"1", "2", "3"} {
			require.Equal(t, want, l.take())
		}
		require.NotEmpty(t, l.take())
	}
}
