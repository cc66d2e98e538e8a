package leases_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// replacesNothing is a store that refuses replacements.
type replacesNothing struct{ *memory.Engine }

func (replacesNothing) Replace(context.Context, ...store.Replacement) error {
	return message.ErrRefused
}

func putOfKey(t *testing.T, s store.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, s.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: id, Key: "k"}, Payload: []byte(`"` + id + `"`)}))
	}
}

// replacedLater is a message for its next visit.
func replacedLater(m message.Message[string]) store.Message {
	return store.Message{Meta: m.Meta(), Payload: []byte(`"` + m.Value + `"`), Delay: time.Minute}
}

// A message that fails keeps its place: the next message of its key is delivered after it
// is done.
func TestWithOrder_ReplacedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		putOfKey(t, engine, "a", "b")
		s := leases.NewSource(engine, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(engine))
		defer s.Close(t.Context())
		first := receive(t, s)
		require.Equal(t, "a", first.Value)
		began := time.Now()
		require.True(t, message.DeliveryOf(first).(leases.InPlace).ReplaceBy(replacedLater(first)))
		first.Ack()
		again := receive(t, s)
		require.Equal(t, "a", again.Value)
		require.Equal(t, 2, again.Meta().Visit)
		require.GreaterOrEqual(t, time.Since(began), time.Minute)
		require.False(t, message.DeliveryOf(first).(leases.InPlace).ReplaceBy(replacedLater(first)), "it was settled")
		again.Ack()
		require.Equal(t, "b", receive(t, s).Value)
	})
}

// A message whose replacement is refused becomes a dead letter, and frees its key. Law
// X1: a doubt that this visit has left is not lost, so a merge leaves the dead letter in
// place.
func TestWithOrder_RefusedReplacement(t *testing.T) {
	for isInDoubt, want := range map[bool]store.Repetition{false: store.RepeatPointless, true: store.RepeatInDoubt} {
		synctest.Test(t, func(t *testing.T) {
			engine := replacesNothing{memory.Open()}
			putOfKey(t, engine, "a", "b")
			s := leases.NewSource(engine, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(engine))
			defer s.Close(t.Context())
			first := receive(t, s)
			again := replacedLater(first)
			again.Meta.UnsafeToRepeat = isInDoubt
			require.True(t, message.DeliveryOf(first).(leases.InPlace).ReplaceBy(again))
			first.Ack()
			require.Equal(t, "b", receive(t, s).Value)
			letters := dead(t, engine)
			require.Len(t, letters, 1)
			require.Equal(t, "a", letters[0].Meta.ID)
			require.Equal(t, isInDoubt, letters[0].Meta.UnsafeToRepeat)
			require.Equal(t, want, letters[0].Repetition(time.Now()))
		})
	}
}

// A source without an order of keys does not replace messages.
func TestSource_ReplaceByWithoutAnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		putOfKey(t, engine, "a")
		s := leases.NewSource(engine, "q", "dead", codec.JSON[string](), quiet)
		defer s.Close(t.Context())
		m := receive(t, s)
		require.False(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(replacedLater(m)))
	})
}

// hung is the engine of a worker that hangs: it does not extend leases, but counts them.
type hung struct {
	*memory.Engine
	asked *atomic.Int64
}

func (h hung) Extend(_ context.Context, _ time.Duration, ls ...store.Lease) error {
	h.asked.Add(int64(len(ls)))
	return nil
}

// lateHandOver returns a worker whose lease has ended before it hands over the failure of
// its visit, and its message. Meanwhile another worker has failed as well, and has stored
// the message's next visit, in a minute.
func lateHandOver(t *testing.T, ofLate hung) (late *leases.Source[string], m message.Message[string]) {
	t.Helper()
	engine := ofLate.Engine
	putOfKey(t, engine, "a")
	late = leases.NewSource(ofLate, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(ofLate))
	other := leases.NewSource(engine, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(engine))
	m = receive(t, late)
	again := receive(t, other) // when the lease has ended
	require.Equal(t, 1, again.Meta().Visit)
	require.True(t, message.DeliveryOf(again).(leases.InPlace).ReplaceBy(replacedLater(again)))
	again.Ack()
	require.NoError(t, other.Close(t.Context()))
	letter := store.Message{Meta: m.Meta(), Cause: store.Permanent, Payload: []byte(`"a"`)}
	isOver, err := leases.HandOver(t.Context(), ofLate, "dead", []store.Message{letter}, []message.Delivery{message.DeliveryOf(m)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, isOver)
	require.Empty(t, dead(t, engine))
	return late, m
}

// Two workers have failed in the same visit of a message. The message is not a dead
// letter while it waits for its next visit in its place.
func TestHandOver_ReplacedByAnotherWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		s, late := lateHandOver(t, hung{engine, &atomic.Int64{}})
		defer s.Close(t.Context())
		late.Settle(message.Settlement{Kind: message.HandedOver})
		synctest.Wait()
		next := receive(t, s)
		require.Equal(t, 2, next.Meta().Visit)
		next.Ack()
		synctest.Wait()
		require.Empty(t, dead(t, engine))
		counts, err := engine.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
	})
}

// The late worker takes the message for its next visit before the late visit is settled.
// That does not settle the next visit.
func TestHandOver_ReplacedAndTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := hung{memory.Open(), &atomic.Int64{}}
		s, late := lateHandOver(t, engine)
		defer s.Close(t.Context())
		asked := engine.asked.Load()
		time.Sleep(2 * time.Minute)
		require.Equal(t, asked, engine.asked.Load(), "its lease is lost")
		takeAgain(t, s)
		time.Sleep(leases.DefaultLease / 3)
		synctest.Wait()
		require.Greater(t, engine.asked.Load(), asked, "its new lease is not extended")
		late.Settle(message.Settlement{Kind: message.HandedOver})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ms, err := s.Receive(ctx, 1)
		require.NoError(t, err, "the message is lost")
		require.Equal(t, 2, ms[0].Meta().Visit)
		ms[0].Ack()
	})
}

// takeAgain lets a source take the message for its next visit that is in flight there.
func takeAgain(t *testing.T, s *leases.Source[string]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the message is in flight here (law D2)")
}

// takenAgain returns a worker whose lease has ended during the first visit of a message,
// and the message. Another worker has stored the message's next visit, changed by edit,
// and the late worker has taken the message for that visit.
func takenAgain(t *testing.T, ofLate hung, edit func(next *store.Message)) (late *leases.Source[string], m message.Message[string]) {
	t.Helper()
	engine := ofLate.Engine
	putOfKey(t, engine, "a")
	late = leases.NewSource(ofLate, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(ofLate))
	m = receive(t, late)
	replacedByAnother(t, engine, edit)
	takeAgain(t, late)
	return late, m
}

// replacedByAnother lets the lease of a message end. Then another worker takes the message,
// and stores its next visit, changed by edit.
func replacedByAnother(t *testing.T, engine *memory.Engine, edit func(next *store.Message)) {
	t.Helper()
	time.Sleep(time.Minute)
	taken, err := engine.TakeInOrder(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	next := taken[0].Clone()
	next.Meta.Visit++
	edit(&next)
	require.NoError(t, engine.Replace(t.Context(), store.Replacement{Lease: taken[0].Lease, Message: next}))
}

// slowToAnswer is the engine of a worker that continues late after the engine's answer to
// HandOver.
type slowToAnswer struct {
	hung
	meanwhile func()
}

func (s *slowToAnswer) HandOver(ctx context.Context, moves ...store.Move) error {
	err := s.hung.HandOver(ctx, moves...)
	s.meanwhile()
	return err
}

// The late worker takes the message for its next visit while the engine refuses the
// failure of the first visit. The message was not purged, and its new lease is extended.
func TestHandOver_TakenAgainMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		engine := &slowToAnswer{hung: hung{memory.Open(), &atomic.Int64{}}}
		putOfKey(t, engine, "a")
		s := leases.NewSource(engine, "q", "dead", codec.JSON[string](), leases.WithOrder(engine), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		defer s.Close(t.Context())
		m := receive(t, s)
		replacedByAnother(t, engine.Engine, func(*store.Message) {})
		s.OnPurge(func() { t.Error("the message was not purged") })
		engine.meanwhile = func() { takeAgain(t, s) }
		letter := store.Message{Meta: m.Meta(), Cause: store.Permanent, Payload: []byte(`"a"`)}
		isOver, err := leases.HandOver(t.Context(), engine, "dead", []store.Message{letter}, []message.Delivery{message.DeliveryOf(m)})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, isOver)
		require.False(t, message.DeliveryOf(m).IsPurged())
		require.Contains(t, log.String(), "another worker has stored the failure of its visit")
		require.NotContains(t, log.String(), "is gone", "it is in flight here, in its next visit")
		require.Equal(t, 1, s.LeasesLost())
		asked := engine.asked.Load()
		time.Sleep(leases.DefaultLease / 3)
		synctest.Wait()
		require.Greater(t, engine.asked.Load(), asked, "its new lease is not extended")
		m.Settle(message.Settlement{Kind: message.HandedOver})
		again := receive(t, s)
		require.Equal(t, 2, again.Meta().Visit)
		again.Ack()
	})
}

// The late worker has taken the message for its next visit before its failure in the
// first visit is handed over. The failure is stored, and ends the message.
func TestHandOver_TakenAgainBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		ofLate := hung{engine, &atomic.Int64{}}
		s, m := takenAgain(t, ofLate, func(*store.Message) {})
		defer s.Close(t.Context())
		letter := store.Message{Meta: m.Meta(), Cause: store.Permanent, Payload: []byte(`"a"`)}
		isOver, err := leases.HandOver(t.Context(), ofLate, "dead", []store.Message{letter}, []message.Delivery{message.DeliveryOf(m)})
		require.NoError(t, err)
		require.Equal(t, []bool{false}, isOver)
		m.Settle(message.Settlement{Kind: message.HandedOver})
		synctest.Wait()
		require.Len(t, dead(t, engine), 1)
		counts, err := engine.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
	})
}

// Law D6. Regression: the late worker has failed, and has taken the message again after
// another worker had replaced it. Its own replacement removed the history of that worker.
func TestWithOrder_ReplacedByAnotherWorker(t *testing.T) {
	for name, failsBefore := range map[string]bool{"the late worker fails before it takes again": true, "it fails afterwards": false} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			putOfKey(t, engine, "a")
			ofLate := hung{engine, &atomic.Int64{}}
			s := leases.NewSource(ofLate, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(ofLate))
			defer s.Close(t.Context())
			m := receive(t, s)
			replacedByAnother(t, engine, func(next *store.Message) { next.Meta.Attempts = 7 })
			if failsBefore {
				require.True(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(replacedLater(m)), name)
			}
			takeAgain(t, s)
			if !failsBefore {
				require.True(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(replacedLater(m)), name)
			}
			m.Settle(message.Settlement{Kind: message.HandedOver})
			again := receive(t, s)
			require.Equal(t, 2, again.Meta().Visit, name)
			require.Equal(t, 7, again.Meta().Attempts, name)
			again.Ack()
		})
	}
}

// Law X1: another worker has left a call in doubt, and the message was taken again here
// while its late visit was running. The failure of the late visit keeps the doubt.
func TestHandOver_TakenAgainInDoubt(t *testing.T) {
	remembered := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	handOver := func(t *testing.T, s store.Engine, m message.Message[string], meta message.Meta) {
		t.Helper()
		letter := store.Message{Meta: meta, Cause: store.Permanent, Payload: []byte(`"a"`)}
		_, err := leases.HandOver(t.Context(), s, "dead", []store.Message{letter}, []message.Delivery{message.DeliveryOf(m)})
		require.NoError(t, err)
		m.Settle(message.Settlement{Kind: message.HandedOver})
	}
	for name, tt := range map[string]struct {
		fail       func(t *testing.T, s store.Engine, m message.Message[string])
		isReplaced bool   // otherwise it is a dead letter
		request    string // of the stored message
		remembered time.Time
	}{
		"replaced": {func(t *testing.T, _ store.Engine, m message.Message[string]) {
			require.True(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(replacedLater(m)))
			m.Ack()
		}, true, "theirs", remembered},
		"replaced, with a doubt of its own": {func(t *testing.T, _ store.Engine, m message.Message[string]) {
			next := replacedLater(m)
			next.Meta.UnsafeToRepeat, next.Meta.Request, next.Meta.Remembered = true, "ours", remembered
			require.True(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(next))
			m.Ack()
		}, true, "ours", time.Time{}},
		"handed over": {func(t *testing.T, s store.Engine, m message.Message[string]) {
			handOver(t, s, m, m.Meta())
		}, false, "theirs", remembered},
		"rejected": {func(_ *testing.T, _ store.Engine, m message.Message[string]) {
			m.Settle(message.Settlement{Kind: message.Rejected, Err: context.Canceled})
		}, false, "theirs", remembered},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				ofLate := hung{engine, &atomic.Int64{}}
				s, m := takenAgain(t, ofLate, func(next *store.Message) {
					next.Meta.UnsafeToRepeat, next.Meta.Request, next.Meta.Remembered = true, "theirs", remembered
				})
				defer s.Close(t.Context())
				tt.fail(t, ofLate, m)
				synctest.Wait()
				stored := dead(t, engine)
				if tt.isReplaced {
					require.Empty(t, stored)
					var err error
					stored, err = engine.List(t.Context(), "q", store.Filter{}, store.Page{Max: 9})
					require.NoError(t, err)
				}
				require.Len(t, stored, 1)
				require.Equal(t, !tt.isReplaced, stored[0].Cause == store.UnsafeToRepeat)
				require.True(t, stored[0].Meta.UnsafeToRepeat)
				require.Equal(t, tt.request, stored[0].Meta.Request)
				require.True(t, tt.remembered.Equal(stored[0].Meta.Remembered))
			})
		})
	}
}

// Law X1: the visit of another worker has ended the doubt of the visit before. A late visit
// that was taken again after both does not bring it back.
func TestSource_TakenAgainAfterADoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		s, m := takenAgain(t, hung{engine, &atomic.Int64{}}, func(next *store.Message) {
			next.Meta.UnsafeToRepeat, next.Meta.Request = true, "theirs"
		})
		defer s.Close(t.Context())
		replacedByAnother(t, engine, func(next *store.Message) {
			next.Meta.UnsafeToRepeat, next.Meta.Request = false, ""
		})
		takeAgain(t, s)
		m.Reject(context.Canceled)
		synctest.Wait()
		letters := dead(t, engine)
		require.Len(t, letters, 1)
		require.False(t, letters[0].Meta.UnsafeToRepeat)
	})
}

// Law X1: a message was in doubt when it was received, and is in the same doubt when it is
// taken again. The call can still be repeated. Law D6: a late visit that has not left a
// doubt of its own does not replace the history of another worker.
func TestSource_TakenAgainInTheSameDoubt(t *testing.T) {
	remembered := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, isReplaced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			meta := message.Meta{ID: "a", Key: "k", UnsafeToRepeat: true, Request: "first", Remembered: remembered}
			require.NoError(t, engine.Put(t.Context(), "q", store.Message{Meta: meta, Payload: []byte(`"a"`)}))
			ofLate := hung{engine, &atomic.Int64{}}
			s := leases.NewSource(ofLate, "q", "dead", codec.JSON[string](), quiet, leases.WithOrder(ofLate))
			defer s.Close(t.Context())
			m := receive(t, s)
			replacedByAnother(t, engine, func(next *store.Message) { next.Meta.Attempts = 7 })
			takeAgain(t, s)
			if isReplaced {
				require.True(t, message.DeliveryOf(m).(leases.InPlace).ReplaceBy(replacedLater(m)))
				m.Ack()
				again := receive(t, s)
				require.Equal(t, 7, again.Meta().Attempts)
				again.Ack()
				return
			}
			m.Reject(context.Canceled)
			synctest.Wait()
			letters := dead(t, engine)
			require.Len(t, letters, 1)
			require.True(t, letters[0].Meta.UnsafeToRepeat)
			require.True(t, remembered.Equal(letters[0].Meta.Remembered))
		})
	}
}

// A result is a message of its own: the doubt of the message that it was made from is not
// a doubt about the result.
func TestHandOver_ResultOfAMessageInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		ofLate := hung{engine, &atomic.Int64{}}
		s, m := takenAgain(t, ofLate, func(next *store.Message) { next.Meta.UnsafeToRepeat = true })
		defer s.Close(t.Context())
		result := store.Message{Meta: message.Meta{ID: "result"}, Payload: []byte(`"a"`)}
		_, err := leases.HandOver(t.Context(), ofLate, "results", []store.Message{result}, []message.Delivery{message.DeliveryOf(m)})
		require.NoError(t, err)
		m.Ack()
		results, err := engine.List(t.Context(), "results", store.Filter{}, store.Page{Max: 9})
		require.NoError(t, err)
		require.Len(t, results, 1)
		require.False(t, results[0].Meta.UnsafeToRepeat)
		require.Empty(t, results[0].Cause)
	})
}
