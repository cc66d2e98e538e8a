package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/internal/storearg"
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

// newConsumer makes a durable consumer, or returns that of the name.
func newConsumer(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration) jetstream.Consumer {
	t.Helper()
	c, err := js.CreateOrUpdateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxAckPending: 1000,
	})
	require.NoError(t, err)
	return c
}

// engineOf returns an engine whose queue "q" is a stream.
func engineOf(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration, opts ...weirjs.Config) *weirjs.Engine {
	t.Helper()
	opts = append([]weirjs.Config{
		{Stream: "weir-" + stream, Logger: quiet(), Foreign: map[string]weirjs.Foreign{"q": {Stream: stream, Consumer: "workers", AckWait: wait, Subject: stream}}},
	}, opts...)
	e, err := weirjs.New(t.Context(), js, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func newSource(t *testing.T, js jetstream.JetStream, stream string, wait time.Duration, opts ...delivery.QueueConfig) delivery.Source[string] {
	t.Helper()
	opts = append([]delivery.QueueConfig{{Logger: quiet(), Lease: wait}}, opts...)
	s := delivery.NewQueue[string](engineOf(t, js, stream, wait), "q", opts...).Source(nil)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// sinkTo returns a queue that publishes to a subject.
func sinkTo(t *testing.T, js jetstream.JetStream, stream, subject string) *delivery.Queue[string] {
	t.Helper()
	e := engineOf(t, js, stream, time.Minute, weirjs.Config{Foreign: map[string]weirjs.Foreign{"out": {Stream: stream, Subject: subject}}})
	return delivery.NewQueue[string](e, "out")
}

// deadLetters returns those of the queue of a stream.
func deadLetters(t *testing.T, js jetstream.JetStream, stream string) []store.Entry {
	t.Helper()
	es, err := engineOf(t, js, stream, time.Minute).List(t.Context(), "q-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	return es
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

// publishRaw publishes one after another: what is published at once can change its order when a server has no answer yet and the client
// tries again.
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

// What a queue has published has its id and its history at a worker (law D6), and is stored once.
func TestPublishedAndReceived(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	e := engineOf(t, js, stream, time.Minute, weirjs.Config{Foreign: map[string]weirjs.Foreign{"out": {
		Stream: stream, SubjectOf: func(m message.Meta) string { return stream + "." + m.Key },
	}}})
	sink := delivery.NewQueue[string](e, "out")
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
	require.Equal(t, message.Meta{
		ID: meta.ID, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Deadline: meta.Deadline, Visit: 1,
		Headers: map[string]string{"Traceparent": "00-1", "Nats-Subject": stream + ".customer"},
	}, m.Meta())
	m.Ack()
	none(t, s, 50*time.Millisecond)
}

// Law D1: the result of a message has its id, and is stored all the same where both are in one stream. The server took it for the message, and
// dropped it.
func TestAResultInTheStreamOfItsMessage(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	e := engineOf(t, js, stream, time.Minute, weirjs.Config{Foreign: map[string]weirjs.Foreign{"out": {Stream: stream, Subject: stream + ".done"}}})
	require.NoError(t, delivery.NewQueue[string](e, "q").Put(t.Context(), "order", delivery.ID("17")))
	for range 2 {
		receipt := message.New("receipt", &message.Meta{ID: "17"}, nil)
		require.NoError(t, delivery.NewQueue[string](e, "out").PutAll(t.Context(), []message.Message[string]{receipt}))
	}
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	stored, err := s.GetLastMsgForSubject(t.Context(), stream+".done")
	require.NoError(t, err)
	require.Equal(t, `"receipt"`, string(stored.Data))
	require.EqualValues(t, 2, s.CachedInfo().State.Msgs, "each is there once")
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
	s := newSource(t, js, stream, time.Minute)
	none(t, s, 100*time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
	letters := deadLetters(t, js, stream)
	require.Equal(t, store.Undecodable, letters[0].Cause)
	require.Equal(t, "a", letters[0].Meta.ID)
	require.Equal(t, "00-1", letters[0].Meta.Headers["Traceparent"])
	require.Contains(t, letters[0].Meta.LastError, `Weir-Visit: "many"`)
}

func TestWhatCannotBePublishedIsRefused(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	put := func(q *delivery.Queue[string], meta message.Meta) error {
		return q.PutAll(t.Context(), []message.Message[string]{message.New("x", &meta, nil)})
	}
	err := put(sinkTo(t, js, stream, stream), message.Meta{ID: "2", Headers: map[string]string{"a": "b\r\nNats-Rollup: all"}})
	require.ErrorIs(t, err, message.ErrRefused)
	require.ErrorContains(t, err, `message "2"`)

	// Nor what has no subject: a function of the user that panics (law A6), or that makes one of a key with a space.
	e := engineOf(t, js, stream, time.Minute, weirjs.Config{Foreign: map[string]weirjs.Foreign{"out": {
		Stream: stream, Subject: stream, SubjectOf: func(m message.Meta) string {
			if m.ID == "bad" {
				panic("no subject")
			}
			return stream + "." + m.Key
		},
	}}})
	named := delivery.NewQueue[string](e, "out")
	err = put(named, message.Meta{ID: "bad"})
	require.ErrorIs(t, err, message.ErrRefused)
	require.ErrorContains(t, err, "no subject")
	for _, key := range []string{"Jane Doe", "a\tb", "a\r\nb", "*", ">", "a.>"} {
		err := put(named, message.Meta{ID: "x", Key: key})
		require.ErrorIs(t, err, message.ErrRefused, "%q", key)
		require.ErrorContains(t, err, fmt.Sprintf("the subject %q", stream+"."+key))
	}
	require.Zero(t, count(t, js, stream))
	err = put(sinkTo(t, js, stream, "nowhere"), message.Meta{ID: "1"})
	require.ErrorContains(t, err, `jetstream: publishing to "nowhere": `)
}

// A worker waits for room then.
func TestAStreamThatIsFull(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 3, jetstream.DiscardNew })
	var ms []message.Message[string]
	for i := range 5 {
		ms = append(ms, message.New(strconv.Itoa(i), nil, nil))
	}
	require.ErrorIs(t, sinkTo(t, js, stream, stream).PutAll(t.Context(), ms), store.ErrFull)
}

// More than a connection's window of unconfirmed messages is no error.
func TestAPutThatIsStalled(t *testing.T) {
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

// Close left the subscription for confirmations on the caller's connection, and the goroutines that belong to it.
func TestCloseLeavesNothingOnTheConnection(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	before := js.Conn().NumSubscriptions()
	e := engineOf(t, js, stream, time.Minute)
	require.NoError(t, e.Put(t.Context(), "q", newMessage("a")))
	require.NoError(t, e.Close())
	require.Equal(t, before, js.Conn().NumSubscriptions())
}

func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}

// Law D2, where the lease was lost although the message is in flight.
func TestARedeliveryJoins(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	mock := clock.NewMock() // so the lease is not extended
	s := newSource(t, js, stream, 100*time.Millisecond, delivery.QueueConfig{Clock: mock})
	m := one(t, s)
	none(t, s, 500*time.Millisecond)
	m.Ack()
	none(t, s, 300*time.Millisecond)
	require.Eventually(t, func() bool {
		mock.Add(time.Second) // what failed is tried again by it
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
		store.Undecodable: "no JSON " + stream + "//1", store.Permanent: `"bad" ` + stream + "//2",
	}, causes)
}

// Laws D1, W4: a failure keeps the bytes and headers that came: what the program's type lacks is in the dead letter.
func TestAFailureKeepsWhatCame(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	m := nats.NewMsg(stream)
	m.Data = []byte(`{ "Name": "Ann", "Unknown": [1, 2.50] }`)
	m.Header["Via"] = []string{"a", "b"}
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	type order struct{ Name string }
	q := delivery.NewQueue[order](engineOf(t, js, stream, time.Minute), "q", delivery.QueueConfig{Logger: quiet()})
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, order) (string, error) {
		return "", predicates.WithReason(errors.New("no"), predicates.NewRejection("NO"))
	}), time.Minute, 1, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet()))
	ctx, cancel := context.WithCancel(bounded(t))
	ran := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, q, op, sinkTo(t, js, stream, "nowhere"), delivery.RunConfig{Logger: quiet(), FloodShare: 1, FloodWindow: 1})
		ran <- err
	}()
	require.Eventually(t, func() bool { return len(deadLetters(t, js, stream)) == 1 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ran)
	letter := deadLetters(t, js, stream)[0]
	require.Equal(t, string(m.Data), string(letter.Payload))
	require.Equal(t, "a, b", letter.Meta.Headers["Via"])
}

// Law D1: two messages with one id, on two subjects of a stream, are two messages. When both failed, one was acknowledged and not kept.
func TestFailuresWithOneIDOnTwoSubjects(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	e := engineOf(t, js, stream, time.Minute)
	fail := map[string]func(taken []store.Leased) error{
		"q": func(taken []store.Leased) error {
			return e.Release(t.Context(), time.Hour, taken[0].Lease, taken[1].Lease)
		},
		"q-dead": func(taken []store.Leased) error {
			return e.Move(t.Context(), store.Move{Lease: taken[0].Lease, Queue: "q-dead", Message: taken[0].Message},
				store.Move{Lease: taken[1].Lease, Queue: "q-dead", Message: taken[1].Message})
		},
	}
	for queue, fail := range fail {
		for _, subject := range []string{"sales", "receipts"} {
			_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: stream + "." + subject, Data: []byte(subject), Header: nats.Header{"Weir-Id": {"order 7"}}})
			require.NoError(t, err)
		}
		require.NoError(t, fail(takeSome(t, e, 2, time.Second)))
		kept, err := e.List(t.Context(), queue, store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, kept, 2, queue)
		require.NotEqual(t, kept[0].Payload, kept[1].Payload)
	}
}

// A choice of a provider is there when the message comes again, also elsewhere.
func TestTheChoiceOfAProvider(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	e := engineOf(t, js, stream, time.Minute)
	taken := takeSome(t, e, 1, time.Minute)
	require.NoError(t, e.Choose(t.Context(), "bank", taken[0].Lease))
	require.NoError(t, e.Release(t.Context(), 0, taken[0].Lease))
	other := engineOf(t, js, stream, time.Minute)
	again := takeSome(t, other, 1, time.Minute)
	require.Equal(t, "bank", again[0].Meta.Provider)
	require.NoError(t, other.Done(t.Context(), again[0].Lease))
}

// takeOne waits until a message can be taken.
func takeOne(t *testing.T, e *weirjs.Engine, lease time.Duration) store.Leased {
	t.Helper()
	return takeSome(t, e, 1, lease)[0]
}

// takeSome waits until n messages have been taken: a consumer may learn of new ones a moment after they were published.
func takeSome(t *testing.T, e *weirjs.Engine, n int, lease time.Duration) (taken []store.Leased) {
	t.Helper()
	require.Eventually(t, func() bool {
		more, err := e.Take(t.Context(), "q", n-len(taken), lease)
		taken = append(taken, more...)
		return err == nil && len(taken) == n
	}, time.Minute, 10*time.Millisecond)
	return taken
}

// Law P1: a worker whose lease has ended chooses no provider: another one may have called the one that it has chosen.
func TestAChoiceAfterTheLease(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	late, now := engineOf(t, js, stream, lease), engineOf(t, js, stream, lease)
	before := takeOne(t, late, lease)
	after := takeOne(t, now, lease)
	require.NoError(t, now.Choose(t.Context(), "north", after.Lease))
	require.ErrorAs(t, late.Choose(t.Context(), "south", before.Lease), new(*store.LeaseError))
	require.NoError(t, now.Release(t.Context(), 0, after.Lease))
	require.Equal(t, "north", takeOne(t, engineOf(t, js, stream, lease), lease).Meta.Provider)
}

// Law P1: a choice that comes after the lease, since it was held up on its way, does not take the place of the next worker's.
func TestAChoiceThatIsHeldUp(t *testing.T) {
	t.Parallel()
	const lease = 8 * time.Second
	s := fresh(t, func(o *server.Options) { o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT })
	js := connect(t, s)
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	proxies, url := startProxies(t, s.URL())
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	behind, err := jetstream.New(nc, jetstream.WithDefaultTimeout(30*time.Second))
	require.NoError(t, err)
	late, now := engineOf(t, behind, stream, lease), engineOf(t, js, stream, lease)
	before := takeOne(t, late, lease)
	proxies[0].hold()
	chosen := make(chan error, 1)
	go func() { chosen <- late.Choose(t.Context(), "south", before.Lease) }()
	after := takeOne(t, now, lease)
	require.NoError(t, now.Choose(t.Context(), "north", after.Lease))
	proxies[0].heal()
	require.Error(t, <-chosen)
	require.NoError(t, now.Release(t.Context(), 0, after.Lease))
	require.Equal(t, "north", takeOne(t, engineOf(t, js, stream, lease), lease).Meta.Provider)
}

// A choice of a worker before that comes late, over a connection that was broken, does not hinder that of the worker which has the message.
func TestAChoiceBehindALateOne(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "one")
	e := engineOf(t, js, stream, time.Minute)
	taken := takeSome(t, e, 1, time.Minute)
	require.NoError(t, js.Conn().Publish("weir.store.weir-"+stream+".=choice.cQ.1", []byte("south")))
	require.NoError(t, e.Choose(t.Context(), "north", taken[0].Lease))
	require.NoError(t, e.Choose(t.Context(), "west", taken[0].Lease))
	require.NoError(t, e.Release(t.Context(), 0, taken[0].Lease))
	again := takeSome(t, engineOf(t, js, stream, time.Minute), 1, time.Minute)
	require.Equal(t, "west", again[0].Meta.Provider)
}

// A Take has a bounded number of bytes, however many messages are asked for, and large messages do not block small ones (law D4).
func TestLargeMessagesComeInParts(t *testing.T) {
	t.Parallel()
	parts := func(t *testing.T, js jetstream.JetStream, p place) {
		stream := newStream(t, js, p.replicate)
		var want []int
		for range 4 {
			for _, size := range []int{7 << 20, 10, 10, 2 << 20} {
				want = append(want, size)
				_, err := js.Publish(bounded(t), stream, make([]byte, size))
				require.NoError(t, err)
			}
		}
		e := engineOf(t, js, stream, time.Minute)
		var got []int
		var given bool // one was given back, since no Take came for a second
		ctx := bounded(t)
		for takes := 0; len(got) < len(want); takes++ {
			require.NoError(t, ctx.Err(), "of %v came %v", want, got)
			limit := []int{1000, 2}[takes%2] // what ends a request overtakes its messages on three servers
			taken, err := e.Take(t.Context(), "q", limit, time.Minute)
			require.NoError(t, err)
			size := 0
			for _, l := range taken {
				got = append(got, len(l.Payload))
				size += len(l.Payload)
				given = given || l.Lease.Fence > 1
				require.NoError(t, e.Done(t.Context(), l.Lease))
			}
			require.LessOrEqual(t, size, storearg.MaxBytes)
		}
		if given {
			require.ElementsMatch(t, want, got)
		} else {
			require.Equal(t, want, got)
		}
	}
	t.Run("servers=1", func(t *testing.T) {
		parts(t, connect(t, fresh(t, largePayload)), place{replicas: 1})
	})
	t.Run("servers=3", func(t *testing.T) {
		_, js := startCluster(t, clustertest.Config{Servers: 3})
		parts(t, js, place{replicas: 3})
	})
}

// A message that is alone does not wait until others come.
func TestAMessageAlone(t *testing.T) {
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
			none(t, newSource(t, js, newStream(t, js), time.Minute), 100*time.Millisecond) // so long that the request waits at the server
		}
		begun := time.Now()
		publish(t, js, stream, "one")
		soonest = min(soonest, (<-came).Sub(begun))
	}
	require.Less(t, soonest, 50*time.Millisecond)
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
	var ms []message.Message[string]
	for range values { // all of them, before the first one can come again
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
	first, err := embedded.Start(dir, embedded.Config{Logger: quiet()})
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
	require.Eventually(t, func() bool { // delivery.Run tries again as well
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
		_, err = weirjs.New(t.Context(), js, weirjs.Config{Logger: quiet(), Foreign: map[string]weirjs.Foreign{"q": {Stream: stream, Consumer: name}}})
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
