package embedded_test

import (
	"context"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/message"
)

const largest = 64 << 10

// withLargest sets the largest message of a server, in bytes.
func withLargest(size int32) func(*server.Options) {
	return func(o *server.Options) { o.MaxPayload, o.SyncAlways = size, false }
}

// putLargest puts a small message into a queue, and the largest message that a Put takes.
func putLargest(t *testing.T, s *weirjs.Engine, queue string) {
	t.Helper()
	put := func(id string, size int) error {
		return s.Put(bounded(t), queue, store.Message{Meta: message.Meta{ID: id}, Payload: make([]byte, size)})
	}
	refused := sort.Search(largest, func(size int) bool {
		id := strconv.Itoa(1_000_000 + size) // of one length
		err := put(id, size)
		if err != nil {
			require.ErrorIs(t, err, message.ErrRefused)
		}
		return err != nil
	})
	require.Greater(t, refused, largest/2)
	_, err := s.Purge(bounded(t), queue, store.Filter{})
	require.NoError(t, err)
	require.NoError(t, put("largest", refused-1))
	require.NoError(t, put("small", 1))
}

// Regression (laws D4, W2): a message just under the server's max_payload was accepted by
// Put, and then did not fit into a transaction. No Take of several messages returned any,
// and no job could change it.
func TestEngine_LargestMessage(t *testing.T) {
	js := connect(t, fresh(t, withLargest(largest)))
	s := openStore(t, js, newStore(t, js))
	putLargest(t, s, "q")
	entries, err := s.List(bounded(t), "q", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	for _, do := range []store.Action{store.Hold, store.Release} {
		require.NoError(t, s.Update(bounded(t), func(ctx context.Context, tx store.Tx) error {
			done, err := tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: entries[0]}, store.Edit{Do: do, Queue: "q", Entry: entries[1]})
			require.Equal(t, []bool{true, true}, done)
			return err
		}))
	}
	taken, err := s.Take(bounded(t), "q", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 2)
}

// Laws D4, W2, W4: the same message, put by a version without that bound, or before
// max_payload was lowered.
func TestEngine_MessageThatFitsIntoNoTransaction(t *testing.T) {
	dir := t.TempDir()
	before := start(t, dir, withLargest(largest))
	js := connect(t, before)
	name := newStore(t, js)
	s, err := openEngine(t.Context(), js, name)
	require.NoError(t, err)
	putLargest(t, s, "q")
	require.NoError(t, s.Close())
	js.Conn().Close()
	require.NoError(t, before.Close())
	s = openStore(t, connect(t, start(t, dir, withLargest(largest-100))), name)
	taken, err := s.Take(bounded(t), "q", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 2)
}
