package embedded_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
)

// brimful is a server whose stream has no room for a mark that replaces a message.
type brimful struct{ jetstream.JetStream }

func (b brimful) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	const fresh = "00000000000000000000"
	if strings.HasPrefix(m.Header.Get("Weir-State"), "d") && m.Header.Get(jetstream.ExpectedLastSubjSeqHeader) != fresh {
		return nil, &jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}
	}
	return b.JetStream.PublishMsg(ctx, m, opts...)
}

// Regression: in a full stream, a message that is done was deleted without a mark, and
// the indexes of other processes counted it for ever.
func TestEngine_RemovalFromAFullStream(t *testing.T) {
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

// Regression (law D5): servers of a replicated stream that is full refuse even a
// publication that replaces a message. So no message could be taken, and no lease
// extended.
func TestEngine_FullStream(t *testing.T) {
	t.Parallel()
	_, js := startCluster(t, clustertest.Config{Servers: 3})
	for what, limit := range map[string]func(*jetstream.StreamConfig){
		"messages": func(c *jetstream.StreamConfig) { c.Replicas, c.MaxMsgs = 3, 20 },
		"bytes":    func(c *jetstream.StreamConfig) { c.Replicas, c.MaxBytes = 3, 64<<10 },
	} {
		t.Run(what, func(t *testing.T) {
			s := openStore(t, js, newStore(t, js, limit))
			put := func(n int) error {
				m := newMessage(strconv.Itoa(n))
				m.Payload = make([]byte, 1000)
				return s.Put(bounded(t), "q", m)
			}
			n, err := 0, error(nil)
			for err == nil { // concurrent puts, some of which may be refused
				errs := make([]error, 4)
				var all sync.WaitGroup
				for i := range errs {
					all.Go(func() { errs[i] = put(n + i) })
				}
				all.Wait()
				for i := range errs {
					if errs[i] != nil {
						require.ErrorIs(t, errs[i], store.ErrFull)
						err = errs[i]
					}
				}
				n += len(errs)
			}
			counted, err := s.Count(bounded(t), "q", store.Filter{})
			require.NoError(t, err)
			n = counted.Messages
			require.Greater(t, n, 1)
			there, err := s.List(bounded(t), "q", store.Filter{}, store.Page{Max: 1})
			require.NoError(t, err)
			require.NoError(t, s.Put(bounded(t), "q", there[0].Message), "it is there")
			for left := n; left > 0; {
				taken, err := s.Take(bounded(t), "q", 5, time.Minute)
				require.NoError(t, err)
				leases := make([]store.Lease, len(taken))
				for i := range taken {
					leases[i] = taken[i].Lease
				}
				require.NoError(t, s.Extend(bounded(t), time.Minute, leases...))
				require.NoError(t, s.Done(bounded(t), leases...))
				left -= len(taken)
			}
			counted, err = s.Count(bounded(t), "q", store.Filter{})
			require.NoError(t, err)
			require.Zero(t, counted.Messages)
		})
	}
}
