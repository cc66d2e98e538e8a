package leases_test

import (
	"context"
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
