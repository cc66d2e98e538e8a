package embedded_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
)

// overwrite publishes a message in place of message number seq of a store.
func overwrite(t *testing.T, js jetstream.JetStream, name string, seq uint64, change func(m *nats.Msg)) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	was, err := stream.GetMsg(t.Context(), seq)
	require.NoError(t, err)
	m := &nats.Msg{Subject: was.Subject, Header: nats.Header{"Weir-State": was.Header["Weir-State"]}, Data: was.Data}
	change(m)
	_, err = js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
}

// Regression (laws D4, W2): one damaged message made Take and List of its whole queue
// fail. It goes to the dead letters with its bytes.
func TestEngine_DamagedMessage(t *testing.T) {
	for what, damaged := range map[string][]byte{"its head": []byte("\x05{ : }payload"), "its length": []byte("\xff\xff"), "all": {}} {
		t.Run(what, func(t *testing.T) {
			js := connect(t, fresh(t))
			name := newStore(t, js)
			s := openStore(t, js, name)
			q := delivery.NewQueue[string](s, "q", delivery.WithLogger(quiet()))
			for _, id := range []string{"a", "b", "c"} {
				require.NoError(t, q.Put(t.Context(), id, delivery.ID(id)))
			}
			overwrite(t, js, name, 3, func(m *nats.Msg) { m.Data = damaged }) // behind the name and a
			list, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
			require.NoError(t, err)
			require.Len(t, list, 3)
			last := list[2].Meta
			require.Equal(t, name+"//5", last.ID)
			require.Contains(t, last.LastError, "message 5, on weir.store."+name)
			n, err := s.Count(t.Context(), "q", store.Filter{IDs: []string{last.ID}})
			require.NoError(t, err)
			require.Equal(t, 1, n.Messages)

			source := q.Source(nil)
			defer source.Close(context.Background())
			for _, want := range []string{"a", "c"} {
				m := one(t, source)
				require.Equal(t, want, m.Value)
				m.Ack()
			}
			none(t, source, 100*time.Millisecond)
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				list, err = s.List(t.Context(), "q-dead", store.Filter{Cause: store.Undecodable}, store.Page{Max: 10})
				require.NoError(c, err)
				require.Len(c, list, 1)
			}, time.Minute, 10*time.Millisecond)
			require.Equal(t, last.ID, list[0].Meta.ID)
			require.Equal(t, string(damaged), string(list[0].Payload), "as it came")
			require.True(t, list[0].Meta.UnsafeToRepeat, "its history is lost")
			require.Contains(t, list[0].Meta.LastError, "is damaged")
		})
	}
}

// The same if another program has overwritten a message: it is no longer in the queue,
// and blocks no other message.
func TestEngine_MessageThatAnotherProgramHasReplaced(t *testing.T) {
	js := connect(t, fresh(t))
	name := newStore(t, js)
	s := openStore(t, js, name)
	require.NoError(t, s.Put(t.Context(), "q", newMessage("a"), newMessage("b"), newMessage("c"), newMessage("d")))
	taken, err := s.Take(t.Context(), "q", 1, time.Minute) // it is number 6
	require.NoError(t, err)
	for _, seq := range []uint64{3, 6} {
		overwrite(t, js, name, seq, func(m *nats.Msg) { m.Header = nil })
	}
	list, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.ErrorAs(t, s.Done(t.Context(), taken[0].Lease), new(*store.LeaseError))
	for range 2 {
		more, err := s.Take(t.Context(), "q", 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, more, 1)
	}
	n, err := s.Purge(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

// A lock and a record that are damaged hide no other ones.
func TestDamagedLocksAndRecords(t *testing.T) {
	js := connect(t, fresh(t))
	name := newStore(t, js)
	s := openStore(t, js, name)
	for _, n := range []string{"a", "b"} {
		_, err := s.Locks().Acquire(t.Context(), n, "me", time.Minute)
		require.NoError(t, err)
		require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "k", Name: n, Value: "v"})
		}))
	}
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	for seq := range uint64(2) {
		m, err := stream.GetMsg(t.Context(), seq+1)
		require.NoError(t, err)
		require.Equal(t, seq == 0, strings.Contains(m.Subject, "=lock."))
		_, err = js.Publish(t.Context(), m.Subject, []byte("{"))
		require.NoError(t, err)
	}
	held, err := s.Locks().Held(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []lock.Holding{{Grant: held[0].Grant, For: held[0].For}}, held)
	require.Equal(t, "b", held[0].Name)
	records, err := s.Records(t.Context(), "k", "", 10)
	require.NoError(t, err)
	require.Equal(t, []store.Record{{Kind: "k", Name: "b", Version: 1, Value: "v"}}, records)
}
