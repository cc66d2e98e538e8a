package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

var streams atomic.Int64

// newStream makes an empty stream of subjects that begin with its name.
func newStream(t *testing.T, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) string {
	t.Helper()
	name := "S" + strconv.FormatInt(streams.Add(1), 10)
	cfg := jetstream.StreamConfig{Name: name, Subjects: []string{name, name + ".>"}}
	for _, f := range change {
		f(&cfg)
	}
	_, err := js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	return name
}

// newConsumer makes the durable consumer, or returns the existing consumer.
func newConsumer(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration) jetstream.Consumer {
	t.Helper()
	c, err := js.CreateOrUpdateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxAckPending: 1000,
	})
	require.NoError(t, err)
	return c
}

// engineOf returns an engine beside a stream, for the layers and dead letters of its
// messages.
func engineOf(t *testing.T, js jetstream.JetStream, stream string, opts ...weirjs.Option) *weirjs.Engine {
	t.Helper()
	e, err := weirjs.New(t.Context(), js, append([]weirjs.Option{weirjs.WithStream("weir-" + stream), weirjs.WithLogger(quiet())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// sourceConfig are the settings of a source whose dead letters are the queue "q-dead" of
// an engine.
func sourceConfig(e store.Engine, stream string, wait time.Duration) weirjs.SourceConfig {
	return weirjs.SourceConfig{Stream: stream, Consumer: "workers", AckWait: wait, DeadLetters: e, DeadLetterQueue: "q-dead", Logger: quiet()}
}

func newSource(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration) delivery.Source[string] {
	t.Helper()
	s := weirjs.NewSource(js, codec.JSON[string](), sourceConfig(engineOf(t, js, stream), stream, wait))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func newSink(t *testing.T, js jetstream.JetStream, config weirjs.SinkConfig) *weirjs.Sink[string] {
	t.Helper()
	s := weirjs.NewSink(js, codec.JSON[string](), config)
	t.Cleanup(s.Close)
	return s
}

// sinkTo returns a sink that publishes to a subject.
func sinkTo(t *testing.T, js jetstream.JetStream, stream, subject string) *weirjs.Sink[string] {
	t.Helper()
	return newSink(t, js, weirjs.SinkConfig{Stream: stream, Subject: subject})
}

// deadLetters returns the dead letters of the queue of a stream.
func deadLetters(t *testing.T, js jetstream.JetStream, stream string) []store.Entry {
	t.Helper()
	es, err := engineOf(t, js, stream).List(t.Context(), "q-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	return es
}

// idIn returns the id of a message that another program has published.
func idIn(t *testing.T, js jetstream.JetStream, stream string, seq uint64) string {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	return fmt.Sprintf("%s:%s//%d", stream, strconv.FormatInt(s.CachedInfo().Created.UnixNano(), 36), seq)
}

// publish publishes strings, as another program does.
func publish(t *testing.T, js jetstream.JetStream, subject string, values ...string) {
	t.Helper()
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	publishRaw(t, js, subject, quoted...)
}

// publishRaw publishes one by one: concurrent publications can change their order when a
// server does not answer yet and the client retries.
func publishRaw(t *testing.T, js jetstream.JetStream, subject string, values ...string) {
	t.Helper()
	for _, v := range values {
		_, err := js.Publish(bounded(t), subject, []byte(v))
		require.NoError(t, err)
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
			t.Parallel() // the rules wait
			// Under delivery.Run, a redelivery may arrive just when its request ends.
			// Then the message is redelivered only after its lease.
			lease := time.Minute
			if strings.Contains(t.Name(), "lease") || strings.Contains(t.Name(), "delivery.Run") {
				lease = 2 * time.Second
			}
			stream := newStream(t, js, p.replicate)
			conns := map[delivery.Source[string]]*nats.Conn{}
			return deliverytest.Queue[string]{
				Open: func() (delivery.Source[string], error) {
					js := p.connect(t)
					s := newSource(t, js, stream, lease)
					conns[s] = js.Conn()
					return s, nil
				},
				Put:   func(values ...string) error { publish(t, js, stream, values...); return nil },
				Keeps: true, Shared: true, Lease: lease,
				Kill: func(s delivery.Source[string]) { conns[s].Close() },
			}
		}, strconv.Itoa)
	})
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func one(t *testing.T, s delivery.Source[string]) message.Message[string] {
	t.Helper()
	ms, err := s.Receive(bounded(t), 1)
	require.NoError(t, err)
	return ms[0]
}

func none(t *testing.T, s delivery.Source[string], d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	ms, err := s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "received %v", ms)
}

// A message that a queue has published has its id and its history at a worker (law D6),
// and is stored once.
func TestPublishedAndReceived(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	sink := newSink(t, js, weirjs.SinkConfig{Stream: stream, SubjectOf: func(m message.Meta) string { return stream + "." + m.Key }})
	meta := message.Meta{
		ID: "orders/0/17\n", Key: "customer", Origin: message.Origin{Source: "orders", Position: "17"}, Visit: 3, Attempts: 7, LastError: "503",
		Provider: "bank", Deadline: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		Headers: map[string]string{"Traceparent": "00-1", "Nats-Rollup": "all"},
	}
	for range 2 {
		require.NoError(t, sink.PutAll(t.Context(), []message.Message[string]{message.New("one", &meta, nil)}))
	}
	s := newSource(t, js, stream, time.Minute)
	m := one(t, s)
	require.Equal(t, "one", m.Value)
	require.Regexp(t, "^"+stream+`:\w+//1$`, m.Meta().Put)
	require.Equal(t, message.Meta{
		ID: meta.ID, Put: m.Meta().Put, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Deadline: meta.Deadline, Visit: 1,
		Headers: map[string]string{"Traceparent": "00-1", "Nats-Subject": stream + ".customer"},
	}, m.Meta())
	m.Ack()
	none(t, s, 50*time.Millisecond)
}

// Regression (law D1): the result of a message has its id, and is stored even if both are
// in one stream. The server took it for the message, and dropped it.
func TestSink_ResultInTheStreamOfItsMessage(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	order, receipt := message.New("order", &message.Meta{ID: "17"}, nil), message.New("receipt", &message.Meta{ID: "17"}, nil)
	require.NoError(t, sinkTo(t, js, stream, stream).PutAll(t.Context(), []message.Message[string]{order}))
	for range 2 {
		require.NoError(t, sinkTo(t, js, stream, stream+".done").PutAll(t.Context(), []message.Message[string]{receipt}))
	}
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	stored, err := s.GetLastMsgForSubject(t.Context(), stream+".done")
	require.NoError(t, err)
	require.Equal(t, `"receipt"`, string(stored.Data))
	require.EqualValues(t, 2, s.CachedInfo().State.Msgs, "each is there once")
}

// Law W4: a message of a later version is delivered, and its unknown parts are passed on,
// as in a rolling upgrade.
func TestSource_MessageOfALaterVersion(t *testing.T) {
	js := connect(t, fresh(t))
	stream, next := newStream(t, js), newStream(t, js)
	m := nats.NewMsg(stream)
	m.Data = []byte(`"v"`)
	m.Header.Set("Weir-Id", "a")
	m.Header.Set("Weir-Tenant", "north%20")
	m.Header.Set("Weir-Meta-later", `{"a":1}`)
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)

	got := one(t, newSource(t, js, stream, time.Minute))
	require.NoError(t, sinkTo(t, js, next, next).PutAll(t.Context(), []message.Message[string]{got}))
	s := newSource(t, js, next, time.Minute)
	passed := one(t, s)
	want := map[string]string{"Weir-Tenant": "north%20", "Weir-Meta-later": `{"a":1}`, "Nats-Subject": next}
	require.Equal(t, "a", passed.Meta().ID)
	require.Equal(t, want, passed.Meta().Headers)
	passed.Reject(errors.New("no"))
	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, want, deadLetters(t, js, next)[0].Meta.Headers)
}

// A damaged header of weir's makes a message undecodable; its sound headers are kept.
func TestSource_DamagedHeader(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	m := nats.NewMsg(stream)
	m.Data = []byte(`"v"`)
	m.Header.Set("Weir-Id", "a")
	m.Header.Set("Weir-Visit", "many")
	m.Header.Set("Traceparent", "00-1")
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	s := newSource(t, js, stream, time.Minute)
	none(t, s, 100*time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
	letters := deadLetters(t, js, stream)
	require.Equal(t, store.Undecodable, letters[0].Cause)
	require.Equal(t, "a", letters[0].Meta.ID)
	require.Equal(t, "00-1", letters[0].Meta.Headers["Traceparent"])
	require.Contains(t, letters[0].Meta.LastError, `Weir-Visit: "many"`)
}

func TestSink_RefusesWhatCannotBePublished(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	put := func(s *weirjs.Sink[string], meta message.Meta) error {
		return s.PutAll(t.Context(), []message.Message[string]{message.New("x", &meta, nil)})
	}
	err := put(sinkTo(t, js, stream, stream), message.Meta{ID: "2", Headers: map[string]string{"a": "b\r\nNats-Rollup: all"}})
	require.ErrorIs(t, err, message.ErrRefused)
	require.ErrorContains(t, err, `message "2"`)

	// Nor can a message without a valid subject: SubjectOf panics (law A6), or uses a key
	// with a space.
	named := newSink(t, js, weirjs.SinkConfig{Stream: stream, Subject: stream, SubjectOf: func(m message.Meta) string {
		if m.ID == "bad" {
			panic("no subject")
		}
		return stream + "." + m.Key
	}})
	err = put(named, message.Meta{ID: "bad"})
	require.ErrorIs(t, err, message.ErrRefused)
	require.ErrorContains(t, err, "no subject")
	for _, key := range []string{"Jane Doe", "a\tb", "a\r\nb", "*", ">", "a.>"} {
		err := put(named, message.Meta{ID: "x", Key: key})
		require.ErrorIs(t, err, message.ErrRefused, "%q", key)
		require.ErrorContains(t, err, fmt.Sprintf("the subject %q", stream+"."+key))
	}
	require.Zero(t, count(t, js, stream))
}

// A worker waits for room then.
func TestSink_StreamThatIsFull(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 3, jetstream.DiscardNew })
	var ms []message.Message[string]
	for i := range 5 {
		ms = append(ms, message.New(strconv.Itoa(i), nil, nil))
	}
	require.ErrorIs(t, sinkTo(t, js, stream, stream).PutAll(t.Context(), ms), store.ErrFull)
}

// More than a connection's window of unconfirmed messages is no error.
func TestSink_StalledPut(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	narrow, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(2))
	require.NoError(t, err)
	var ms []message.Message[string]
	for i := range 500 {
		ms = append(ms, message.New(strconv.Itoa(i), nil, nil))
	}
	require.NoError(t, sinkTo(t, narrow, stream, stream).PutAll(t.Context(), ms))
	require.Equal(t, uint64(500), count(t, js, stream))
}

// Law D5: the worker stops when most of the last messages cannot be decoded, and counts
// them.
func TestSource_UndecodableMessagesStopTheWorker(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	const n = 60
	publishRaw(t, js, stream, slices.Repeat([]string{"7"}, n)...)
	e := engineOf(t, js, stream)
	q := delivery.NewQueue[string](e, "q", delivery.WithLogger(quiet()))
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) { return v, nil }), time.Minute, 100,
		asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet()))
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	ran := make(chan delivery.Summary, 1)
	go func() { // ends with ctx
		source := q.Source(weirjs.NewSource(js, codec.JSON[string](), sourceConfig(e, stream, time.Minute)))
		summary, err := delivery.Run(ctx, source, op, sinkTo(t, js, stream, stream+".results"), delivery.WithLogger(quiet()), delivery.WithFloodGuard(0.5, 10))
		assert.NoError(t, err)
		ran <- summary
	}()
	require.Eventually(t, func() bool { return len(deadLetters(t, js, stream)) >= 6 }, time.Minute, 10*time.Millisecond)
	cancel()
	summary := <-ran
	require.Equal(t, 1, summary.Floods)
	require.Len(t, deadLetters(t, js, stream), summary.Rejected)
	require.Less(t, summary.Rejected, n)
	require.Equal(t, summary.Rejected, summary.Received)
}

func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}

// Law D1: rejected and unreadable messages are in the dead letters before the server
// forgets them.
func TestDeadLetters(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	_, err := js.Publish(t.Context(), stream, []byte("no JSON"))
	require.NoError(t, err)
	publish(t, js, stream, "bad")
	s := newSource(t, js, stream, time.Minute)
	m := one(t, s)
	m.Reject(errors.New("no such customer"))
	require.Eventually(t, func() bool { return count(t, js, stream) == 0 }, time.Minute, time.Millisecond)
	es := deadLetters(t, js, stream)
	causes := map[store.Cause]string{}
	for _, e := range es {
		causes[e.Cause] = string(e.Payload) + " " + e.Meta.ID
	}
	require.Equal(t, map[store.Cause]string{
		store.Undecodable: "no JSON " + idIn(t, js, stream, 1), store.Permanent: `"bad" ` + idIn(t, js, stream, 2),
	}, causes)
}

// Laws D1, W4: a failure keeps the headers that came. (Its value is encoded again: only
// queues keep the bytes as received.)
func TestSource_FailureKeepsHeaders(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	m := nats.NewMsg(stream)
	m.Data = []byte(`{ "Name": "Ann", "Unknown": [1, 2.50] }`)
	m.Header["Via"] = []string{"a", "b"}
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	type order struct{ Name string }
	e := engineOf(t, js, stream)
	q := delivery.NewQueue[order](e, "q", delivery.WithLogger(quiet()))
	source := q.Source(weirjs.NewSource(js, codec.JSON[order](), sourceConfig(e, stream, time.Minute)))
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, order) (string, error) {
		return "", predicates.WithReason(errors.New("no"), predicates.NewRejection("NO"))
	}), time.Minute, 1, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet()))
	ctx, cancel := context.WithCancel(bounded(t))
	ran := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, source, op, sinkTo(t, js, stream, stream), delivery.WithLogger(quiet()), delivery.WithFloodGuard(1, 1))
		ran <- err
	}()
	require.Eventually(t, func() bool { return len(deadLetters(t, js, stream)) == 1 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ran)
	letter := deadLetters(t, js, stream)[0]
	require.Equal(t, `{"Name":"Ann"}`, string(letter.Payload))
	require.Equal(t, "a, b", letter.Meta.Headers["Via"])
}

// Regression (law D1): two messages with one id, on two subjects of a stream, are two
// messages. When both failed, one was acknowledged and not kept.
func TestEngine_OneIDOnTwoSubjects(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	for _, subject := range []string{"sales", "receipts"} {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: stream + "." + subject, Data: strconv.AppendQuote(nil, subject), Header: nats.Header{"Weir-Id": {"order 7"}}})
		require.NoError(t, err)
	}
	s := newSource(t, js, stream, time.Minute)
	for range 2 {
		one(t, s).Reject(errors.New("no"))
	}
	require.NoError(t, s.Close(t.Context()))
	kept := deadLetters(t, js, stream)
	require.Len(t, kept, 2)
	require.NotEqual(t, kept[0].Payload, kept[1].Payload)
}

// Regression: Close waited for the end of the request that waits for a message, up to a
// second. A later message goes to another source at once.
func TestSource_CloseWhileItWaits(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	consumer := newConsumer(t, js, stream, time.Minute)
	soonest := time.Hour
	for range 5 {
		s := newSource(t, js, stream, time.Minute)
		ctx, stop := context.WithCancel(t.Context())
		received := make(chan error)
		go func() {
			_, err := s.Receive(ctx, 1)
			received <- err
		}()
		require.Eventually(t, func() bool {
			info, err := consumer.Info(t.Context())
			return err == nil && info.NumWaiting == 1
		}, time.Minute, time.Millisecond)
		stop()
		require.ErrorIs(t, <-received, context.Canceled)
		begun := time.Now()
		require.NoError(t, s.Close(t.Context()))
		soonest = min(soonest, time.Since(begun))
		publish(t, js, stream, "later")
		begun = time.Now()
		one(t, newSource(t, js, stream, time.Minute)).Ack()
		require.Less(t, time.Since(begun), 30*time.Second)
	}
	require.Less(t, soonest, 200*time.Millisecond)
}

// A Receive of many messages returns with the first message, without waiting for more.
func TestSource_MessageAlone(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	s := newSource(t, js, stream, time.Minute)
	soonest := time.Hour
	for i := range 10 {
		came := make(chan time.Time)
		go func() {
			ms, err := s.Receive(bounded(t), 100)
			assert.NoError(t, err)
			came <- time.Now()
			ms[0].Ack()
		}()
		if i > 0 {
			none(t, newSource(t, js, newStream(t, js), time.Minute), 100*time.Millisecond) // long enough for the request to wait at the server
		}
		begun := time.Now()
		publish(t, js, stream, "one")
		soonest = min(soonest, (<-came).Sub(begun))
	}
	require.Less(t, soonest, 50*time.Millisecond)
}

// Law D3: a delay holds over restarts of the server, which keeps it in whole seconds.
func TestSource_DelayOverARestart(t *testing.T) {
	t.Parallel()
	const lease = 15 * time.Second // the next server redelivers messages after it
	dir := t.TempDir()
	server := start(t, dir)
	js := connect(t, server)
	stream := newStream(t, js)
	values := make([]string, 20)
	for i := range values {
		values[i] = strconv.Itoa(i)
	}
	publish(t, js, stream, values...)
	s := newSource(t, js, stream, lease)
	due := map[string]time.Time{}
	var ms []message.Message[string]
	for range values { // take all before the first can be redelivered
		ms = append(ms, one(t, s))
	}
	for i, m := range ms {
		d := 1500*time.Millisecond + time.Duration(i)*37*time.Millisecond
		due[m.Value] = time.Now().Add(d)
		m.Nack(d)
	}
	require.NoError(t, s.Close(t.Context()))
	js.Conn().Close()
	require.NoError(t, server.Close())
	js = connect(t, start(t, dir))
	s = newSource(t, js, stream, lease)
	for range values {
		m := one(t, s)
		late := time.Since(due[m.Value])
		require.GreaterOrEqual(t, late, time.Duration(0), "%s came early", m.Value)
		require.Less(t, late, time.Minute)
		m.Ack()
	}
}

func TestSource_OutlivesItsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := embedded.Start(dir, embedded.Config{Logger: quiet()})
	require.NoError(t, err)
	// The server in the process has no port, so the connection finds the next server by
	// this dialer.
	dialer := &switchable{}
	dialer.server.Store(first)
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.SetCustomDialer(dialer), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream := newStream(t, js)
	publish(t, js, stream, "one", "two")
	s := newSource(t, js, stream, 2*time.Second)
	m := one(t, s)
	require.NoError(t, first.Close())
	m.Ack() // there is no server
	dialer.server.Store(start(t, dir))
	require.Eventually(t, func() bool { // delivery.Run repeats Receive, too
		ms, err := s.Receive(bounded(t), 1)
		if err == nil {
			require.Equal(t, "two", ms[0].Value)
			ms[0].Ack()
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		c, err := js.Consumer(t.Context(), stream, "workers")
		if err != nil {
			return false
		}
		info := c.CachedInfo()
		return info.NumAckPending == 0 && info.AckFloor.Stream == 2
	}, time.Minute, 10*time.Millisecond)
}

func TestConsumersThatDoNotFit(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	for name, cfg := range map[string]jetstream.ConsumerConfig{
		"AckPolicy": {AckPolicy: jetstream.AckNonePolicy}, "MaxDeliver": {MaxDeliver: 5, AckPolicy: jetstream.AckExplicitPolicy},
		"BackOff":     {BackOff: []time.Duration{time.Second}, AckPolicy: jetstream.AckExplicitPolicy},
		"HeadersOnly": {HeadersOnly: true, AckPolicy: jetstream.AckExplicitPolicy},
	} {
		cfg.Durable = name
		_, err := js.CreateConsumer(t.Context(), stream, cfg)
		require.NoError(t, err)
		config := sourceConfig(memory.Open(), stream, time.Minute)
		config.Consumer = name
		_, err = weirjs.NewSource(js, codec.JSON[string](), config).Receive(bounded(t), 1)
		require.ErrorContains(t, err, name)
		require.True(t, guard.IsPermanent(err), name)
	}
}

func TestSource_ConsumerWasDeleted(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	s := newSource(t, js, stream, time.Minute)
	publish(t, js, stream, "one")
	one(t, s).Ack()
	require.NoError(t, js.DeleteConsumer(t.Context(), stream, "workers"))
	require.Eventually(t, func() bool {
		_, err := s.Receive(bounded(t), 1)
		require.ErrorContains(t, err, fmt.Sprintf("consumer %s/workers", stream))
		return guard.IsPermanent(err) // else the client has no answer yet
	}, time.Minute, 10*time.Millisecond)
}
