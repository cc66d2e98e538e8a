package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
)

// Servers of a cluster write many at once: what is sent waits for no answers, which come here when all has been sent.

// listed is a consumer whose messages are made up. They are acknowledged at subjects that say their numbers.
type listed struct {
	jetstream.Consumer
	ms   []jetstream.Msg
	next chan jetstream.MessageBatch // what comes when there are none; nil: nothing
}

func (*listed) Info(context.Context) (*jetstream.ConsumerInfo, error) {
	return &jetstream.ConsumerInfo{Stream: "S", Name: "workers", Config: jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}}, nil
}

func (l *listed) FetchNoWait(n int) (jetstream.MessageBatch, error) {
	if len(l.ms) == 0 && l.next != nil {
		return <-l.next, nil
	}
	n = min(n, len(l.ms))
	b := make(batch, n)
	for _, m := range l.ms[:n] {
		b <- m
	}
	close(b)
	l.ms = l.ms[n:]
	return b, nil
}

func (*listed) Fetch(int, ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	none := make(batch)
	close(none)
	return none, nil
}

type batch chan jetstream.Msg

func (b batch) Messages() <-chan jetstream.Msg { return b }
func (batch) Error() error                     { return nil }

type madeUp struct {
	jetstream.Msg
	seq   uint64
	reply string
}

func (m madeUp) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Stream: "S", Consumer: "workers", Sequence: jetstream.SequencePair{Stream: m.seq}}, nil
}
func (m madeUp) Reply() string      { return m.reply }
func (madeUp) Data() []byte         { return []byte(`"x"`) }
func (madeUp) Headers() nats.Header { return nil }
func (madeUp) Subject() string      { return "S" }

// receiveAll returns n messages that are acknowledged at subject(i).
func receiveAll(t *testing.T, js jetstream.JetStream, n int, subject func(i int) string) (*jsqueue.Source[string], []delivery.Message[string]) {
	t.Helper()
	return receiveListed(t, js, &listed{}, n, subject)
}

func receiveListed(t *testing.T, js jetstream.JetStream, l *listed, n int, subject func(i int) string) (*jsqueue.Source[string], []delivery.Message[string]) {
	t.Helper()
	for i := range n {
		l.ms = append(l.ms, madeUp{seq: uint64(i) + 1, reply: subject(i)})
	}
	s, err := jsqueue.NewSource(t.Context(), js, l, codec.JSON[string](), jsqueue.WithLogger(quiet()))
	require.NoError(t, err)
	ms, err := s.Receive(t.Context(), n)
	require.NoError(t, err)
	require.Len(t, ms, n)
	return s, ms
}

func TestAcknowledgementsDoNotWaitForEachOther(t *testing.T) {
	js := connect(t, fresh(t))
	const n = 1000
	s, ms := receiveAll(t, js, n, func(i int) string { return "ack." + strconv.Itoa(i) })
	first := make(chan *nats.Msg)
	var waiting []*nats.Msg
	_, err := js.Conn().Subscribe("ack.*", func(m *nats.Msg) {
		if m.Subject == "ack.0" {
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

// Law D1: a verdict that has no answer is sent again, and the others are not.
func TestVerdictsWithoutAnAnswer(t *testing.T) {
	js := connect(t, fresh(t))
	const n = 100
	s, ms := receiveAll(t, js, n, func(i int) string { return fmt.Sprintf("ack.%d.%d", i%2, i) })
	var mu sync.Mutex
	sent := map[string]int{}
	answer := func(m *nats.Msg) {
		mu.Lock()
		sent[m.Subject]++
		mu.Unlock()
		_ = m.Respond(nil)
	}
	_, err := js.Conn().Subscribe("ack.0.*", answer)
	require.NoError(t, err)
	for _, m := range ms {
		m.Ack()
	}
	require.Eventually(t, func() bool {
		nothing := errors.New("nothing has come")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, nothing)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		return !errors.Is(err, nothing) // why verdicts were not confirmed
	}, time.Minute, time.Millisecond)
	_, err = js.Conn().Subscribe("ack.1.*", answer)
	require.NoError(t, err)
	require.NoError(t, js.Conn().Flush())
	require.NoError(t, s.Close(bounded(t)))
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, sent, n)
	for i := 0; i < n; i += 2 {
		require.Equal(t, 1, sent[fmt.Sprintf("ack.0.%d", i)], i)
	}
}

// Law D3: a message whose Nack had no answer may be another worker's by now, which may have set another delay. So it is nacked again only
// until its own delay is over.
func TestNacksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	s, ms := receiveAll(t, js, 2, func(i int) string { return fmt.Sprintf("ack.%d", i) })
	var mu sync.Mutex
	got := map[string][]string{}
	sub, err := js.Conn().Subscribe("ack.*", func(m *nats.Msg) {
		mu.Lock()
		got[m.Subject] = append(got[m.Subject], string(m.Data))
		mu.Unlock()
	})
	require.NoError(t, err)
	ms[0].Nack(0)
	ms[1].Nack(time.Hour)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got["ack.1"]) >= 2
	}, time.Minute, time.Millisecond)
	require.NoError(t, sub.Unsubscribe())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.Error(t, s.Close(ctx))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"-NAK"}, got["ack.0"])
	require.Contains(t, got["ack.1"][1], `-NAK {"delay": 35`)
}

// Laws D3 and P1: a lease whose extensions the server has not confirmed ends, and with it what this source may do to the message.
func TestExtensionsWithoutAnAnswer(t *testing.T) {
	js := connect(t, fresh(t))
	c := clock.NewMock()
	l := &listed{ms: []jetstream.Msg{madeUp{seq: 1, reply: "ack.0"}, madeUp{seq: 2, reply: "ack.1"}}}
	s, err := jsqueue.NewSource(t.Context(), js, l, codec.JSON[string](), jsqueue.WithLogger(quiet()), jsqueue.WithClock(c))
	require.NoError(t, err)
	ms, err := s.Receive(t.Context(), 2)
	require.NoError(t, err)
	asked := make(chan string, 100)
	sub, err := js.Conn().Subscribe("ack.0", func(m *nats.Msg) {
		asked <- string(m.Data)
		_ = m.Respond(nil)
	})
	require.NoError(t, err)
	for range 3 { // 30 s, the lease
		c.Add(10 * time.Second)
		require.Equal(t, "+WPI", <-asked)
	}
	other, err := js.Conn().Subscribe("ack.1", func(m *nats.Msg) { asked <- "ack.1 " + string(m.Data) })
	require.NoError(t, err)
	ms[1].Nack(0)
	ms[0].Nack(0)
	require.NoError(t, s.Close(bounded(t)))
	require.NoError(t, sub.Unsubscribe())
	require.NoError(t, other.Unsubscribe())
	close(asked)
	var got []string
	for a := range asked {
		got = append(got, a)
	}
	require.Equal(t, []string{"-NAK"}, got)
}

// Law D2: a redelivery that is on its way when its message is acknowledged does not come after that.
func TestARedeliveryOnItsWay(t *testing.T) {
	js := connect(t, fresh(t))
	l := &listed{next: make(chan jetstream.MessageBatch)}
	s, ms := receiveListed(t, js, l, 2, func(i int) string { return "ack." + strconv.Itoa(i) })
	asked := make(chan *nats.Msg)
	_, err := js.Conn().Subscribe("ack.*", func(m *nats.Msg) { asked <- m })
	require.NoError(t, err)
	batches, come := make(batch), make(chan []delivery.Message[string])
	go func() {
		ms, err := s.Receive(bounded(t), 2)
		assert.NoError(t, err)
		come <- ms
	}()
	l.next <- batches // the server has sent them
	ms[0].Ack()
	m := <-asked
	ms[1].Ack()
	require.NoError(t, m.Respond(nil))
	require.NoError(t, (<-asked).Respond(nil)) // the first verdict is confirmed, as the second comes after it
	batches <- madeUp{seq: 1, reply: "ack.0"}
	batches <- madeUp{seq: 3, reply: "ack.2"}
	close(batches)
	got := <-come
	require.Len(t, got, 1)
	require.Equal(t, "S//3", got[0].Meta().ID)

	// Later it is another delivery: the server has lost the acknowledgement.
	again := make(batch, 1)
	again <- madeUp{seq: 1, reply: "ack.0"}
	close(again)
	go func() { l.next <- again }()
	got, err = s.Receive(bounded(t), 2)
	require.NoError(t, err)
	require.Equal(t, "S//1", got[0].Meta().ID)
	go func() {
		for m := range asked {
			_ = m.Respond(nil)
		}
	}()
	require.NoError(t, s.Close(bounded(t)))
	js.Conn().Close()
	close(asked)
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
	ms := make([]delivery.Message[string], n)
	for i := range ms {
		ms[i] = delivery.New("x", nil, nil)
	}
	require.NoError(t, jsqueue.NewSink(js, "out", codec.JSON[string](), jsqueue.WithConfirmWithin(time.Minute)).PutAll(bounded(t), ms))
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
	acked := 0
	ms := make([]delivery.Message[string], n)
	for i := range ms {
		ms[i] = delivery.New("x", nil, func(delivery.Verdict) { acked++ })
	}
	sink := jsqueue.NewSink(js, "out", codec.JSON[string](), jsqueue.WithConfirmWithin(5*time.Second))
	ctx := bounded(t)
	require.ErrorIs(t, sink.PutAll(ctx, ms), context.DeadlineExceeded)
	require.NoError(t, ctx.Err(), "it has waited for the context")
	require.Equal(t, confirmed, acked, "law D1")
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

// What is never confirmed, as by a server that is killed, does not fill the window of later publications.
func TestPublicationsThatWereNeverConfirmed(t *testing.T) {
	t.Parallel()
	server := fresh(t)
	js, err := jetstream.New(connect(t, server).Conn(), jetstream.WithPublishAsyncMaxPending(2))
	require.NoError(t, err)
	stream := newStream(t, js)
	answers := relay(t, js, stream)
	put := func(within time.Duration, values ...string) error {
		var ms []delivery.Message[string]
		for _, v := range values {
			ms = append(ms, delivery.New(v, nil, nil))
		}
		return jsqueue.NewSink(js, "out", codec.JSON[string](), jsqueue.WithConfirmWithin(within)).PutAll(bounded(t), ms)
	}
	require.ErrorIs(t, put(200*time.Millisecond, "a", "b"), context.DeadlineExceeded)
	answers.Store(true)
	require.NoError(t, put(time.Minute, "c", "d", "e"))
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.Equal(t, []string{"c", "d", "e"}, got)
}

// The same holds for an output, which waits once, and not for each message.
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

// late is a server that confirms the first message too late, and stores it when the next one comes.
type late struct {
	jetstream.JetStream
	first func() error
}

func (l *late) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if l.first == nil {
		l.first = sync.OnceValue(func() error { _, err := l.JetStream.PublishMsg(context.WithoutCancel(ctx), m, opts...); return err })
		return nil, context.DeadlineExceeded
	}
	if err := l.first(); err != nil {
		return nil, err
	}
	return l.JetStream.PublishMsg(ctx, m, opts...)
}

// The only writer does not take its own message for that of another one.
func TestOnlyWriterWhoseMessageComesLate(t *testing.T) {
	for what, second := range map[string]string{"the same again": "a", "another one": "b"} {
		t.Run(what, func(t *testing.T) {
			js := connect(t, fresh(t))
			stream := newStream(t, js)
			sink := jsqueue.NewSink(&late{JetStream: js}, stream, codec.JSON[string](), jsqueue.WithOnlyWriter(stream))
			put := func(id string) error {
				return sink.PutAll(t.Context(), []delivery.Message[string]{delivery.New(id, &delivery.Meta{ID: id}, nil)})
			}
			require.ErrorIs(t, put("a"), context.DeadlineExceeded)
			require.NoError(t, put(second))
			require.NoError(t, put("c"))
			other := jsqueue.NewSink(js, stream, codec.JSON[string]())
			require.NoError(t, other.PutAll(t.Context(), []delivery.Message[string]{delivery.New("x", nil, nil)}))
			require.ErrorIs(t, put("d"), jsqueue.ErrNotTheOnlyWriter)
			got, err := values[string](js, stream)
			require.NoError(t, err)
			require.Equal(t, slices.Compact([]string{"a", second, "c", "x"}), got)
		})
	}
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
	sink := jsqueue.NewSink(&storing{js, 3}, stream, codec.JSON[string]())
	require.NoError(t, sink.PutAll(t.Context(), []delivery.Message[string]{delivery.New("one", nil, nil), delivery.New("two", nil, nil)}))
	out := jscheckpoint.NewOutput(&storing{js, 3}, stream, stream, codec.JSON[string]())
	require.NoError(t, out.Write(t.Context(), "three"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Commit(t.Context(), state))
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"one", "two", "three"}, got)
}
