package embedded_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// brimful is a server whose stream has no room for a mark in place of a message.
type brimful struct{ jetstream.JetStream }

func (b brimful) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	const fresh = "00000000000000000000"
	if strings.HasPrefix(m.Header.Get("Weir-State"), "d") && m.Header.Get(jetstream.ExpectedLastSubjSeqHeader) != fresh {
		return nil, &jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}
	}
	return b.JetStream.PublishMsg(ctx, m, opts...)
}

// In a stream without room for a mark a message that is done was deleted, and the indexes of other processes counted it for ever.
func TestOthersHearOfARemovalFromAFullStream(t *testing.T) {
	js := connect(t, fresh(t))
	name := newStore(t, js)
	worker, other := openStore(t, brimful{js}, name), openStore(t, js, name)
	for what, remove := range map[string]func() error{
		"done": func() error {
			taken, err := worker.Take(bounded(t), "q", 1, time.Minute)
			require.NoError(t, err)
			return worker.Done(bounded(t), taken[0].Lease)
		},
		"purged": func() error {
			_, err := worker.Purge(bounded(t), "q", store.Filter{})
			return err
		},
	} {
		require.NoError(t, other.Put(bounded(t), "q", newMessage(what)))
		counted, err := other.Count(bounded(t), "q", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1, counted.Messages)
		require.NoError(t, remove())
		counted, err = other.Count(bounded(t), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counted.Messages, what)
	}
}
