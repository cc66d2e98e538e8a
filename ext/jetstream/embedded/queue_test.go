package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
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

// newConsumer makes a durable consumer, or returns that of the name.
func newConsumer(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration) jetstream.Consumer {
	t.Helper()
	c, err := js.CreateOrUpdateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxAckPending: 1000,
	})
	require.NoError(t, err)
	return c
}

func newSource(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration, opts ...jsqueue.SourceOption) *jsqueue.Source[string] {
	t.Helper()
	opts = append([]jsqueue.SourceOption{jsqueue.WithLogger(quiet())}, opts...)
	s, err := jsqueue.NewSource(t.Context(), js, newConsumer(t, js, stream, wait), codec.JSON[string](), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func publish(t *testing.T, js jetstream.JetStream, subject string, values ...string) {
	t.Helper()
	var ms []delivery.Message[string]
	for _, v := range values {
		ms = append(ms, delivery.New(v, nil, nil))
	}
	require.NoError(t, jsqueue.NewSink(js, subject, codec.JSON[string]()).PutAll(t.Context(), ms))
}

func TestSource(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
			// Under delivery.Run a redelivery may cross the end of the request for it; it comes again after its lease then.
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

// bounded returns a context that ends before the test hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// one receives one message.
func one(t *testing.T, s delivery.Source[string]) delivery.Message[string] {
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

// What a sink has published has its id and its history at a source (law D6), and is stored once.
func TestSinkAndSource(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	sink := jsqueue.NewSink(js, stream, codec.JSON[string](),
		jsqueue.WithSubject(func(m delivery.Meta) string { return stream + "." + m.Key }))
	meta := delivery.Meta{
		ID: "orders/0/17\n", Key: "customer", Origin: delivery.Origin{Source: "orders", Position: "17"}, Visit: 3, Provider: "bank",
		Headers: map[string]string{"Traceparent": "00-1", "Nats-Rollup": "all"},
	}
	for range 2 {
		require.NoError(t, sink.PutAll(t.Context(), []delivery.Message[string]{delivery.New("one", &meta, nil), delivery.New("two", nil, nil)}[:1]))
	}
	s := newSource(t, js, stream, time.Minute)
	m := one(t, s)
	require.Equal(t, "one", m.Value)
	want := meta
	want.Visit, want.Headers = 1, map[string]string{"Traceparent": "00-1", "Nats-Subject": stream + ".customer"}
	require.Equal(t, want, m.Meta())
	m.Ack()
	none(t, s, 50*time.Millisecond)
}

// Law W4: a message of a later version is delivered, and what this one does not know of it is passed on, as in a rolling upgrade.
func TestAMessageOfALaterVersion(t *testing.T) {
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
	require.NoError(t, jsqueue.NewSink(js, next, codec.JSON[string]()).PutAll(t.Context(), []delivery.Message[string]{got}))
	dead := memory.Open()
	s := newSource(t, js, next, time.Minute, jsqueue.WithDeadLetters(dead, "dead"))
	passed := one(t, s)
	want := map[string]string{"Weir-Tenant": "north%20", "Weir-Meta-later": `{"a":1}`, "Nats-Subject": next}
	require.Equal(t, "a", passed.Meta().ID)
	require.Equal(t, want, passed.Meta().Headers)
	passed.Reject(errors.New("no"))
	require.NoError(t, s.Close(t.Context()))
	letters, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Equal(t, want, letters[0].Meta.Headers)
}

// A header of weir's that is damaged makes a message undecodable; what is sound is kept.
func TestADamagedHeader(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	m := nats.NewMsg(stream)
	m.Data = []byte(`"v"`)
	m.Header.Set("Weir-Id", "a")
	m.Header.Set("Weir-Visit", "many")
	m.Header.Set("Traceparent", "00-1")
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	dead := memory.Open()
	s := newSource(t, js, stream, time.Minute, jsqueue.WithDeadLetters(dead, "dead"))
	none(t, s, 100*time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
	letters, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Equal(t, store.Undecodable, letters[0].Cause)
	require.Equal(t, "a", letters[0].Meta.ID)
	require.Equal(t, "00-1", letters[0].Meta.Headers["Traceparent"])
	require.Contains(t, letters[0].Meta.LastError, `Weir-Visit: "many"`)
}

func TestSinkRejectsWhatCannotBeWritten(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	verdicts := make(chan delivery.Verdict, 1)
	bad := delivery.New("x", &delivery.Meta{Headers: map[string]string{"a": "b\r\nNats-Rollup: all"}}, func(v delivery.Verdict) { verdicts <- v })
	require.NoError(t, jsqueue.NewSink(js, stream, codec.JSON[string]()).PutAll(t.Context(), []delivery.Message[string]{bad}))
	require.Equal(t, delivery.Rejected, (<-verdicts).Kind)

	// Law A6: nor does a function of the user that panics break a Put of others.
	sink := jsqueue.NewSink(js, stream, codec.JSON[string](), jsqueue.WithSubject(func(m delivery.Meta) string {
		if m.ID == "bad" {
			panic("no subject")
		}
		return ""
	}))
	bad = delivery.New("x", &delivery.Meta{ID: "bad"}, func(v delivery.Verdict) { verdicts <- v })
	require.NoError(t, sink.PutAll(t.Context(), []delivery.Message[string]{bad, delivery.New("good", &delivery.Meta{ID: "good"}, nil)}))
	require.ErrorContains(t, (<-verdicts).Err, "no subject")
	require.Equal(t, uint64(1), count(t, js, stream))

	// Nor does one of a subject that nothing can be published to, such as one made of a key with a space.
	named := jsqueue.NewSink(js, stream, codec.JSON[string](), jsqueue.WithSubject(func(m delivery.Meta) string { return stream + "." + m.Key }))
	for _, key := range []string{"Jane Doe", "a\tb", "a\r\nb", "*", ">", "a.>"} {
		bad = delivery.New("x", &delivery.Meta{ID: "bad", Key: key}, func(v delivery.Verdict) { verdicts <- v })
		require.NoError(t, named.PutAll(t.Context(), []delivery.Message[string]{bad}), "%q", key)
		require.ErrorContains(t, (<-verdicts).Err, fmt.Sprintf("the subject %q", stream+"."+key))
	}
	require.Equal(t, uint64(1), count(t, js, stream))
	require.PanicsWithValue(t, "jsqueue: WithSubject: the function is nil", func() { jsqueue.WithSubject(nil) })

	// D1: without an acknowledgement the caller would not see the rejection, and take the value for safe.
	bad = delivery.New("x", &delivery.Meta{ID: "2", Headers: map[string]string{"a": "b\r\nNats-Rollup: all"}}, nil)
	err := jsqueue.NewSink(js, stream, codec.JSON[string]()).PutAll(t.Context(), []delivery.Message[string]{bad})
	require.ErrorContains(t, err, fmt.Sprintf("jsqueue: subject %q: message %q: ", stream, "2"))
}

func TestCloseOverABrokenConnection(t *testing.T) {
	js := connect(t, start(t, t.TempDir()))
	stream := newStream(t, js)
	publish(t, js, stream, "v")
	s := newSource(t, js, stream, time.Minute)
	one(t, s)
	js.Conn().Close()
	require.ErrorContains(t, s.Close(bounded(t)), "jsqueue: consumer "+stream+"/workers: giving back a message: ")
}

func TestSinkOfASubjectWithoutStream(t *testing.T) {
	sink := jsqueue.NewSink(connect(t, start(t, t.TempDir())), "nowhere", codec.JSON[string]())
	err := sink.PutAll(t.Context(), []delivery.Message[string]{delivery.New("x", &delivery.Meta{ID: "1"}, func(delivery.Verdict) {})})
	require.ErrorContains(t, err, `jsqueue: publishing to "nowhere": `)
}

// Law D1: what was confirmed is acknowledged, the rest is the caller's.
func TestSinkWhoseStreamIsFull(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 3, jetstream.DiscardNew })
	acked := 0
	var ms []delivery.Message[string]
	for i := range 5 {
		ms = append(ms, delivery.New(strconv.Itoa(i), nil, func(v delivery.Verdict) { acked++ }))
	}
	// A worker waits for room then.
	require.ErrorIs(t, jsqueue.NewSink(js, stream, codec.JSON[string]()).PutAll(t.Context(), ms), delivery.ErrFull)
	require.Equal(t, 3, acked)
}

// What belongs to a message goes on with it, but for its history.
func TestSinkKeepsWhatIsKnown(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	meta := delivery.Meta{
		ID: "17", Key: "k", Origin: delivery.Origin{Source: "orders", Position: "3"}, Provider: "north", Visit: 3, Attempts: 7, LastError: "503",
		Deadline: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), Headers: map[string]string{"trace": "x"},
	}
	ms := []delivery.Message[string]{delivery.New("value", &meta, nil)}
	require.NoError(t, jsqueue.NewSink(js, stream, codec.JSON[string]()).PutAll(t.Context(), ms))
	got := one(t, newSource(t, js, stream, time.Minute)).Meta()
	delete(got.Headers, "Nats-Subject")
	require.Equal(t, delivery.Meta{
		ID: meta.ID, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Deadline: meta.Deadline, Headers: meta.Headers, Visit: 1,
	}, got)
}

// More than a connection's window of unconfirmed messages is no error.
func TestSinkWaitsWhenItIsStalled(t *testing.T) {
	t.Parallel()
	server := fresh(t)
	js := connect(t, server)
	stream := newStream(t, js)
	narrow, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(2))
	require.NoError(t, err)
	var ms []delivery.Message[string]
	for i := range 500 {
		ms = append(ms, delivery.New(strconv.Itoa(i), nil, nil))
	}
	require.NoError(t, jsqueue.NewSink(narrow, stream, codec.JSON[string]()).PutAll(t.Context(), ms))
	require.Equal(t, uint64(500), count(t, js, stream))
}

func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}

func TestOnlyWriter(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	open := func() *jsqueue.Sink[string] {
		return jsqueue.NewSink(js, stream, codec.JSON[string](), jsqueue.WithOnlyWriter(stream))
	}
	put := func(s *jsqueue.Sink[string], id string) error {
		return s.PutAll(t.Context(), []delivery.Message[string]{delivery.New(id, &delivery.Meta{ID: id}, nil)})
	}
	first := open()
	require.NoError(t, put(first, "a"))
	require.NoError(t, put(first, "a"), "the same again is stored once")
	require.NoError(t, put(first, "b"))
	second := open()
	require.NoError(t, put(second, "c"))
	for range 2 {
		require.ErrorIs(t, put(first, "d"), jsqueue.ErrNotTheOnlyWriter)
	}
	require.NoError(t, put(second, "d"))
	require.Equal(t, uint64(4), count(t, js, stream))
}

// Law D2, where the lease was lost although the message is in flight.
func TestARedeliveryJoins(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	mock := clock.NewMock() // so the lease is not extended
	s := newSource(t, js, stream, 100*time.Millisecond, jsqueue.WithClock(mock))
	m := one(t, s)
	none(t, s, 500*time.Millisecond)
	m.Ack()
	none(t, s, 300*time.Millisecond)
	require.Eventually(t, func() bool {
		info, err := newConsumer(t, js, stream, 100*time.Millisecond).Info(t.Context())
		require.NoError(t, err)
		return info.NumAckPending == 0 && info.AckFloor.Stream == 1
	}, time.Minute, time.Millisecond)
}

// Law D1: what is rejected, and what cannot be read, is in the dead letters before the server forgets it.
func TestDeadLetters(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	_, err := js.Publish(t.Context(), stream, []byte("no JSON"))
	require.NoError(t, err)
	publish(t, js, stream, "bad")
	dead := memory.Open()
	s := newSource(t, js, stream, time.Minute, jsqueue.WithDeadLetters(dead, "dead"))
	m := one(t, s)
	m.Reject(errors.New("no such customer"))
	require.Eventually(t, func() bool { return count(t, js, stream) == 0 }, time.Minute, time.Millisecond)
	es, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	causes := map[store.Cause]string{}
	for _, e := range es {
		causes[e.Cause] = string(e.Payload) + " " + e.Meta.ID
	}
	require.Equal(t, map[store.Cause]string{
		store.Undecodable: "no JSON " + stream + "//1", store.Permanent: `"bad" ` + stream + "//2",
	}, causes)
}

// A full store of dead letters stops nothing else, and loses nothing.
func TestDeadLettersThatAreFull(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	publish(t, js, stream, "bad", "good")
	dead := memory.Open(memory.WithLimit(1))
	require.NoError(t, dead.Put(t.Context(), "other", store.Message{Meta: delivery.Meta{ID: "x"}}))
	s := newSource(t, js, stream, time.Minute, jsqueue.WithDeadLetters(dead, "dead"))
	one(t, s).Reject(errors.New("bad"))
	require.Eventually(t, func() bool { // until the verdict was tried: a Receive returns the failure of the one before
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		return errors.Is(err, store.ErrFull)
	}, time.Minute, time.Millisecond)
	require.Equal(t, uint64(2), count(t, js, stream))
	leased, err := dead.Take(t.Context(), "other", 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, dead.Done(t.Context(), leased[0].Lease))
	require.Eventually(t, func() bool { return count(t, js, stream) == 1 }, time.Minute, time.Millisecond)
}

// slowPut is a store whose Put waits for release, or for the end of its context.
type slowPut struct {
	store.Store
	entered chan context.Context
	release chan struct{}
}

func (s slowPut) Put(ctx context.Context, queue string, ms ...store.Message) error {
	s.entered <- ctx
	select {
	case <-s.release:
		return s.Store.Put(ctx, queue, ms...)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A store of dead letters that does not answer holds up neither the leases nor the verdicts of others (laws D2, D4).
func TestDeadLettersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	publish(t, js, stream, "bad", "done", "slow")
	const lease = time.Second
	dead := slowPut{memory.Open(), make(chan context.Context, 9), make(chan struct{})}
	s := newSource(t, js, stream, lease, jsqueue.WithDeadLetters(dead, "dead"))
	release := sync.OnceFunc(func() { close(dead.release) })
	t.Cleanup(release) // or the source could not be closed after a failure
	ms := map[string]delivery.Message[string]{}
	for range 3 {
		m := one(t, s)
		ms[m.Value] = m
	}
	ms["bad"].Reject(errors.New("bad"))
	select {
	case <-dead.entered:
	case <-bounded(t).Done():
		require.FailNow(t, "what is rejected does not go to the dead letters")
	}
	ms["done"].Ack()
	require.Eventually(t, func() bool { return count(t, js, stream) == 2 }, time.Minute, time.Millisecond)
	none(t, newSource(t, js, stream, lease), 3*lease)
	ms["slow"].Ack()
	require.Eventually(t, func() bool { return count(t, js, stream) == 1 }, time.Minute, time.Millisecond)
	release()
	require.NoError(t, s.Close(bounded(t)))
	require.Zero(t, count(t, js, stream))
}

// Close waits for what is being recorded, until its context ends.
func TestCloseDoesNotBreakOffARecording(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	publish(t, js, stream, "bad")
	dead := slowPut{memory.Open(), make(chan context.Context, 9), make(chan struct{})}
	s := newSource(t, js, stream, time.Minute, jsqueue.WithDeadLetters(dead, "dead"))
	one(t, s).Reject(errors.New("bad"))
	putting := <-dead.entered
	closing, end := context.WithCancel(t.Context())
	closed := make(chan error)
	go func() { closed <- s.Close(closing) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Eventually(t, func() bool {
		_, err := s.Receive(ctx, 1)
		return !errors.Is(err, context.Canceled) // it is closed
	}, time.Minute, time.Millisecond)
	require.NoError(t, putting.Err())
	end()
	require.ErrorIs(t, <-closed, context.Canceled)
	<-putting.Done()

	close(dead.release)
	require.NoError(t, s.Close(bounded(t)), "a second Close goes on")
	require.Zero(t, count(t, js, stream))
}

// Law D3: a delay holds over restarts of the server, which keeps it in whole seconds.
func TestADelayOverARestartOfTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := start(t, dir)
	js := connect(t, server)
	stream := newStream(t, js)
	values := make([]string, 20)
	for i := range values {
		values[i] = strconv.Itoa(i)
	}
	publish(t, js, stream, values...)
	s := newSource(t, js, stream, time.Minute)
	due := map[string]time.Time{}
	for i := range values {
		m := one(t, s)
		d := 1500*time.Millisecond + time.Duration(i)*37*time.Millisecond
		due[m.Value] = time.Now().Add(d)
		m.Nack(d)
	}
	require.NoError(t, s.Close(t.Context()))
	js.Conn().Close()
	require.NoError(t, server.Close())
	js = connect(t, start(t, dir))
	s = newSource(t, js, stream, time.Minute)
	for range values {
		m := one(t, s)
		late := time.Since(due[m.Value])
		require.GreaterOrEqual(t, late, time.Duration(0), "%s came early", m.Value)
		require.Less(t, late, time.Minute)
		m.Ack()
	}
}

func TestASourceOutlivesItsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := embedded.Start(dir, embedded.WithLogger(quiet()))
	require.NoError(t, err)
	// The server in the process has no port to come back on, so the connection finds the next one by this.
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
	got := one(t, s)
	require.Equal(t, "two", got.Value)
	got.Ack()
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
		"BackOff": {BackOff: []time.Duration{time.Second}, AckPolicy: jetstream.AckExplicitPolicy},
	} {
		cfg.Durable = name
		c, err := js.CreateConsumer(t.Context(), stream, cfg)
		require.NoError(t, err)
		_, err = jsqueue.NewSource(t.Context(), js, c, codec.JSON[string]())
		require.ErrorContains(t, err, name)
	}
}

func TestAConsumerThatIsGone(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	s := newSource(t, js, stream, time.Minute)
	require.NoError(t, js.DeleteConsumer(t.Context(), stream, "workers"))
	_, err := s.Receive(bounded(t), 1)
	require.ErrorContains(t, err, fmt.Sprintf("consumer %s/workers", stream))
}
