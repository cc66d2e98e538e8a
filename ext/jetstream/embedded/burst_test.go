package embedded_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
)

// Servers of a cluster write many messages at once, so publishing does not wait for
// answers: here they arrive when all messages have been sent.

func TestPublicationsDoNotWaitForEachOther(t *testing.T) {
	js := connect(t, fresh(t))
	const n = 500
	var waiting []*nats.Msg
	_, err := js.Conn().Subscribe("out", func(m *nats.Msg) {
		if waiting = append(waiting, m); len(waiting) == n {
			for i, m := range waiting {
				_ = m.Respond(fmt.Appendf(nil, `{"stream":"OUT","seq":%d}`, i+1))
			}
		}
	})
	require.NoError(t, err)
	ms := make([]message.Message[string], n)
	for i := range ms {
		ms[i] = message.New("x", nil, nil)
	}
	require.NoError(t, sinkTo(t, js, newStream(t, js), "out").PutAll(bounded(t), ms))
}

// A server that does not answer delays a Put once, not for each message.
func TestPublicationsThatAreNotConfirmed(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	const n, confirmed = 2000, 100 // more than are published at once
	got := 0
	_, err := js.Conn().Subscribe("out", func(m *nats.Msg) {
		if got++; got <= confirmed {
			_ = m.Respond(fmt.Appendf(nil, `{"stream":"OUT","seq":%d}`, got))
		}
	})
	require.NoError(t, err)
	ms := make([]message.Message[string], n)
	for i := range ms {
		ms[i] = message.New("x", nil, nil)
	}
	sink := sinkTo(t, js, newStream(t, js), "out")
	ctx := bounded(t)
	require.ErrorIs(t, sink.PutAll(ctx, ms), context.DeadlineExceeded)
	require.NoError(t, ctx.Err(), "it has waited for the context")
}

// relay publishes the messages of the subject "out" to a stream, and answers like the
// server. It ignores messages until answers is set.
func relay(t *testing.T, js jetstream.JetStream, stream string) (answers *atomic.Bool) {
	t.Helper()
	answers = &atomic.Bool{}
	s, err := js.Conn().Subscribe("out", func(m *nats.Msg) {
		if !answers.Load() {
			return
		}
		r, err := js.Conn().RequestMsg(&nats.Msg{Subject: stream, Header: m.Header, Data: m.Data}, time.Minute)
		if assert.NoError(t, err) {
			assert.NoError(t, m.Respond(r.Data))
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Unsubscribe() })
	return answers
}

// An output that is not confirmed waits once, not for each message. Publications that are
// never confirmed, for example because a server was killed, do not fill the window of
// later ones.
func TestCommitsThatAreNotConfirmed(t *testing.T) {
	t.Parallel()
	plain := connect(t, fresh(t))
	js, err := jetstream.New(plain.Conn(), jetstream.WithPublishAsyncMaxPending(256))
	require.NoError(t, err)
	stream := newStream(t, js)
	answers := relay(t, js, stream)
	out := jscheckpoint.NewOutput(js, stream, "out", codec.JSON[string]())
	var want []string
	for i := range 300 {
		want = append(want, strconv.Itoa(i))
		require.NoError(t, out.Write(t.Context(), want[i]))
	}
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	ctx := bounded(t)
	require.Error(t, out.Commit(ctx, state))
	require.NoError(t, ctx.Err(), "it has waited for the context")
	answers.Store(true)
	require.NoError(t, out.Commit(bounded(t), state))
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// storing is a server that refuses the first publications, because it is still storing
// messages with the same ids. times is their number.
type storing struct {
	jetstream.JetStream
	times int
}

func (s *storing) PublishMsgAsync(m *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if s.times--; s.times >= 0 {
		err := make(chan error, 1)
		err <- &jetstream.APIError{Code: 409, ErrorCode: 10158, Description: "duplicate message id is in process"}
		return refusedFuture{err: err}, nil
	}
	return s.JetStream.PublishMsgAsync(m, opts...)
}

type refusedFuture struct {
	jetstream.PubAckFuture
	err chan error
}

func (refusedFuture) Ok() <-chan *jetstream.PubAck { return nil }
func (f refusedFuture) Err() <-chan error          { return f.err }

// The output and the sink repeat publications that the server refuses because it is still
// storing messages with the same ids.
func TestOutput_ServerStillStores(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	sink := sinkTo(t, &storing{js, 3}, stream, stream)
	require.NoError(t, sink.PutAll(t.Context(), []message.Message[string]{message.New("one", nil, nil), message.New("two", nil, nil)}))
	out := jscheckpoint.NewOutput(&storing{js, 3}, stream, stream, codec.JSON[string]())
	require.NoError(t, out.Write(t.Context(), "three"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Commit(t.Context(), state))
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"one", "two", "three"}, got)
}
