package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
)

// Servers of a cluster write many at once: what is sent waits for no answers, which come here when all has been sent.

// listed is a consumer whose messages are made up.
type listed struct{ jetstream.Consumer }

func (listed) CachedInfo() *jetstream.ConsumerInfo {
	return &jetstream.ConsumerInfo{Stream: "S", Name: "workers", Config: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}}
}

// listing is a server with a consumer whose messages are made up.
type listing struct{ jetstream.JetStream }

func (listing) Consumer(context.Context, string, string) (jetstream.Consumer, error) {
	return listed{}, nil
}

// pretending dials a server from which messages come with "$JS.ACK." in place of "$JS.ACQ.": it lets no client send what asks for an
// acknowledgement as its own messages do.
type pretending struct{ server *embedded.Server }

func (p pretending) Dial(string, string) (net.Conn, error) {
	c, err := p.server.Dial()
	return &pretendingConn{Conn: c, r: bufio.NewReader(c)}, err
}

type pretendingConn struct {
	net.Conn
	r    *bufio.Reader
	line []byte // what was not read of it
}

func (c *pretendingConn) Read(b []byte) (int, error) {
	if len(c.line) == 0 {
		line, err := c.r.ReadBytes('\n')
		if err != nil {
			return copy(b, line), err
		}
		c.line = bytes.ReplaceAll(line, []byte("$JS.ACQ."), []byte("$JS.ACK."))
	}
	n := copy(b, c.line)
	c.line = c.line[n:]
	return n, nil
}

func connectPretending(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.SetCustomDialer(pretending{fresh(t)}), nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// ackOf is where message i of a group is acknowledged.
func ackOf(group string, i int) string {
	return fmt.Sprintf("$JS.ACK.%s.workers.1.%d.%d.1.0", group, i+1, i+1)
}

// makeUp answers the requests for messages of a stream's consumer with n messages that are acknowledged at subject(i).
func makeUp(t *testing.T, js jetstream.JetStream, stream string, n int, subject func(i int) string) {
	t.Helper()
	i := 0
	_, err := js.Conn().Subscribe("$JS.API.CONSUMER.MSG.NEXT."+stream+".workers", func(m *nats.Msg) {
		var r struct {
			Batch  int  `json:"batch"`
			NoWait bool `json:"no_wait"`
		}
		assert.NoError(t, json.Unmarshal(m.Data, &r))
		for ; r.Batch > 0 && i < n; r.Batch, i = r.Batch-1, i+1 {
			assert.NoError(t, js.Conn().PublishRequest(m.Reply, strings.Replace(subject(i), "$JS.ACK.", "$JS.ACQ.", 1), []byte(`"x"`)))
		}
		if r.NoWait && r.Batch > 0 {
			assert.NoError(t, m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}}}))
		}
	})
	require.NoError(t, err)
}

// receiveAll returns n messages that are acknowledged at subject(i).
func receiveAll(t *testing.T, js jetstream.JetStream, n int, subject func(i int) string, opts ...delivery.QueueConfig) (delivery.Source[string], []message.Message[string]) {
	t.Helper()
	stream := newStream(t, js)
	makeUp(t, js, stream, n, subject)
	s := newSource(t, listing{js}, stream, 30*time.Second, opts...)
	var ms []message.Message[string]
	for len(ms) < n {
		more, err := s.Receive(bounded(t), n)
		require.NoError(t, err)
		ms = append(ms, more...)
	}
	return s, ms
}

func TestAcknowledgementsDoNotWaitForEachOther(t *testing.T) {
	js := connectPretending(t)
	const n = 1000
	s, ms := receiveAll(t, js, n, func(i int) string { return ackOf("A", i) })
	first := make(chan *nats.Msg)
	var waiting []*nats.Msg
	_, err := js.Conn().Subscribe("$JS.ACK.A.>", func(m *nats.Msg) {
		if m.Subject == ackOf("A", 0) {
			first <- m
			return
		}
		if waiting = append(waiting, m); len(waiting) == n-1 {
			for _, m := range waiting {
				_ = m.Respond(nil)
			}
		}
	})
	require.NoError(t, err)
	ms[0].Ack()
	m := <-first // meanwhile no other one is sent
	for _, m := range ms[1:] {
		m.Ack()
	}
	require.NoError(t, m.Respond(nil))
	require.NoError(t, s.Close(bounded(t)))
}

// Law D1: a settlement that has no answer is sent again, and the others are not.
func TestSettlementsWithoutAnAnswer(t *testing.T) {
	js := connectPretending(t)
	const n = 100
	s, ms := receiveAll(t, js, n, func(i int) string { return ackOf("A"+strconv.Itoa(i%2), i) })
	var mu sync.Mutex
	sent := map[string]int{}
	answer := func(m *nats.Msg) {
		mu.Lock()
		sent[m.Subject]++
		mu.Unlock()
		_ = m.Respond(nil)
	}
	_, err := js.Conn().Subscribe("$JS.ACK.A0.>", answer)
	require.NoError(t, err)
	for _, m := range ms {
		m.Ack()
	}
	require.Eventually(t, func() bool {
		nothing := errors.New("nothing has come")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, nothing)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		return !errors.Is(err, nothing) // why settlements were not confirmed
	}, time.Minute, time.Millisecond)
	_, err = js.Conn().Subscribe("$JS.ACK.A1.>", answer)
	require.NoError(t, err)
	require.NoError(t, js.Conn().Flush())
	require.NoError(t, s.Close(bounded(t)))
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, sent, n)
	for i := 0; i < n; i += 2 {
		require.Equal(t, 1, sent[ackOf("A0", i)], i)
	}
}

// Law D3: a message whose Nack had no answer may be another worker's by now, which may have set a delay. So it is not nacked again.
func TestNacksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	js := connectPretending(t)
	s, ms := receiveAll(t, js, 1, func(i int) string { return ackOf("A", i) })
	got := make(chan string, 100)
	_, err := js.Conn().Subscribe(ackOf("A", 0), func(m *nats.Msg) { got <- string(m.Data) })
	require.NoError(t, err)
	ms[0].Nack(0)
	require.Equal(t, "-NAK", <-got)
	require.NoError(t, s.Close(bounded(t)))
	require.NoError(t, js.Conn().Flush())
	require.Empty(t, got)
}

// A lease is extended, and what is given back is not any more.
func TestExtensions(t *testing.T) {
	js := connectPretending(t)
	c := clock.NewMock()
	asked := make(chan string, 100)
	_, err := js.Conn().Subscribe(ackOf("A", 0), func(m *nats.Msg) {
		asked <- string(m.Data)
		_ = m.Respond(nil)
	})
	require.NoError(t, err)
	s, ms := receiveAll(t, js, 1, func(i int) string { return ackOf("A", i) }, delivery.QueueConfig{Clock: c})
	for range 3 {
		c.Add(10 * time.Second)
		require.Equal(t, "+WPI", <-asked)
	}
	ms[0].Nack(0)
	require.Equal(t, "-NAK", <-asked)
	require.NoError(t, s.Close(bounded(t)))
	require.Empty(t, asked)
}

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

// A server that does not answer holds up a Put once, and not for each message.
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

// relay publishes to a stream what comes on the subject "out", and answers as the server does, as soon as answers is set.
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

// An output that is not confirmed waits once, and not for each message. What is never confirmed, as by a server that is killed, does not fill
// the window of later publications.
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

// storing is a server that is storing the messages already, some times.
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

// What was published before, and is not stored yet, is waited for.
func TestWhatIsBeingStored(t *testing.T) {
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
