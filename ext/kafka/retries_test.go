package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"math/big"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func (c *cluster) retries(layers ...Layer) *Retries[string] {
	c.t.Helper()
	r, err := NewRetries(RetriesConfig[string]{
		Client: []kgo.Opt{c.seed()}, Codec: text(), Layers: layers, DeadLetters: "dead",
		Permanent: func(f asyncop.Failure[string]) bool { return f.Err.Error() == "refused" },
	})
	require.NoError(c.t, err)
	c.t.Cleanup(r.Close)
	return r
}

// TestRetries sends orders through an operator whose calls fail, with two layers.
func TestRetries(t *testing.T) {
	t.Parallel()
	const delay1, delay2 = 100 * time.Millisecond, 200 * time.Millisecond
	c := newCluster(t, 2, "orders", "orders.1", "orders.2", "dead")
	retries := c.retries(Layer{Topic: "orders.1", Delay: delay1, Jitter: 0.5}, Layer{Topic: "orders.2", Delay: delay2})
	c.produce("orders", 2, numbers(30)...)
	s, err := NewSource("group", append([]string{"orders"}, retries.Topics()...), text(), c.quick(), WithLogger(silent),
		WithCommitInterval(20*time.Millisecond))
	require.NoError(t, err)
	defer s.Close(context.Background())

	var mu sync.Mutex
	calls := map[string][]time.Time{}
	done := map[string]bool{}
	call := func(ctx context.Context, v string) (string, error) {
		meta, _ := delivery.MetaFromContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		calls[v] = append(calls[v], time.Now())
		assert.Equal(t, len(calls[v]), meta.Visit)
		n, _ := strconv.Atoi(v)
		switch {
		case n%10 == 1: // poison
			return "", errors.New("down")
		case n%10 == 2:
			return "", errors.New("refused")
		case n%3 == 0 && meta.Visit < 3:
			return "", errors.New("down")
		}
		return v, nil
	}
	idempotent := strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent()
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(call), 10*time.Second, 100, idempotent,
		asyncop.WithFailureSink(retries.Take), asyncop.WithLogger(silent))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	in := make(chan delivery.Message[string])
	go func() {
		defer close(in)
		for {
			ms, err := s.Receive(ctx, 10)
			if err != nil {
				return
			}
			for _, m := range ms {
				in <- m
			}
		}
	}()
	for m, err := range op.Messages(func(yield func(delivery.Message[string], error) bool) {
		for m := range in {
			if !yield(m, nil) {
				return
			}
		}
	}) {
		if assert.NoError(t, err) {
			mu.Lock()
			done[m.Value] = true
			mu.Unlock()
			m.Ack()
		}
		if len(done) == 24 {
			go func() {
				eventually(t, func() bool { return c.length("dead", 2) == 6 }, "dead letters")
				cancel()
			}()
		}
	}
	require.Len(t, done, 24)
	for v, at := range calls {
		for i := 1; i < len(at); i++ { // law D3
			assert.GreaterOrEqual(t, at[i].Sub(at[i-1]), []time.Duration{delay1, delay2}[i-1], v)
		}
	}
	dead := receive(t, c.source("dead"), 6)
	for _, m := range dead {
		n, _ := strconv.Atoi(m.Value)
		meta := m.Meta()
		assert.Equal(t, "orders", meta.Origin.Source)
		assert.Equal(t, "key "+m.Value, meta.Key)
		assert.Empty(t, meta.Headers)
		if n%10 == 1 {
			assert.Equal(t, "down", meta.LastError)
			assert.Equal(t, 4, meta.Visit, "three have failed")
			assert.Equal(t, 3, meta.Attempts)
		} else {
			assert.Equal(t, "refused", meta.LastError)
			assert.Equal(t, 2, meta.Visit)
		}
	}
}

func (c *cluster) length(topic string, partitions int32) (n int64) {
	for p := range partitions {
		n += c.end(topic, p)
	}
	return n
}

func TestDeadLettersHaveTheHeadersOfOthers(t *testing.T) {
	c := newCluster(t, 1, "dead")
	r := c.retries()
	require.NoError(t, r.PutDead(t.Context(), store.Message{
		Meta:    delivery.Meta{ID: "i", Key: "k", Origin: delivery.Origin{Source: "orders", Partition: "3", Position: "1234567890123"}, LastError: "down"},
		Payload: []byte("v"), Cause: store.Exhausted,
	}))
	reader := c.client(kgo.ConsumeTopics("dead"))
	fetches := reader.PollFetches(t.Context())
	require.NoError(t, fetches.Err())
	h := map[string]string{}
	for _, header := range fetches.Records()[0].Headers {
		assert.NotContains(t, h, header.Key)
		h[header.Key] = string(header.Value)
	}
	assert.Equal(t, "orders", h["kafka_dlt-original-topic"])
	assert.EqualValues(t, 3, binary.BigEndian.Uint32([]byte(h["kafka_dlt-original-partition"])))
	assert.EqualValues(t, int64(1234567890123), binary.BigEndian.Uint64([]byte(h["kafka_dlt-original-offset"])))
	assert.Equal(t, "down", h["kafka_dlt-exception-message"])
	assert.Equal(t, "weir: exhausted", h["kafka_dlt-exception-fqcn"])
	assert.Equal(t, "orders", h["__connect.errors.topic"])
	assert.Equal(t, "3", h["__connect.errors.partition"])
	assert.Equal(t, "1234567890123", h["__connect.errors.offset"])
	assert.Equal(t, "down", h["__connect.errors.exception.message"])
	assert.Equal(t, "i", h["Weir-Id"])
	assert.Equal(t, "k", string(fetches.Records()[0].Key))
	assert.NotContains(t, h, "Weir-Key", "it is there once")
}

// What a server demands is kept over the layer (law D3), and no less than the layer's delay.
func TestALayerHeedsTheServer(t *testing.T) {
	c := newCluster(t, 1, "layer", "dead")
	r := c.retries(Layer{Topic: "layer", Delay: time.Minute})
	for i, demand := range []time.Duration{time.Hour, time.Second} {
		ctx := delivery.ContextWithMeta(t.Context(), delivery.Meta{ID: numbers(2)[i]})
		err := predicates.WithPushback(errors.New("429"), demand)
		require.NoError(t, r.Take(ctx, asyncop.Failure[string]{Element: "v", Err: err, Verdict: strategies.Refused}))
	}
	view := c.view("layer", "nobody")
	entries, err := view.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for i, want := range []time.Duration{time.Hour, time.Minute} {
		assert.WithinDuration(t, time.Now().Add(want), entries[i].Meta.Due, 30*time.Second)
	}
}

// Law W4: a record of a later version is delivered, and what this one does not know of it is passed on: to the dead letters, with a merge,
// and by a sink.
func TestARecordOfALaterVersion(t *testing.T) {
	c := newCluster(t, 1, "orders", "dead", "again", "next")
	r := &kgo.Record{Topic: "orders", Value: []byte("v"), Headers: []kgo.RecordHeader{
		header("Weir-Tenant", []byte("north%20")), header("Weir-Meta-later", []byte(`{"a":1}`)),
	}}
	require.NoError(t, c.client().ProduceSync(t.Context(), r).FirstErr())
	want := map[string]string{"Weir-Tenant": "north%20", "Weir-Meta-later": `{"a":1}`}
	s := c.source("orders", WithDeadLetters(c.retries().PutDead))
	m := receive(t, s, 1)[0]
	assert.Equal(t, want, m.Meta().Headers)
	m.Reject(errors.New("no"))
	require.NoError(t, s.Close(t.Context()))
	view := c.view("dead", "")
	letters, err := view.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	assert.Equal(t, want, letters[0].Meta.Headers)
	_, err = view.Merge(t.Context(), jobs.Spec{To: "again"}, nil)
	require.NoError(t, err)
	m = receive(t, c.source("again"), 1)[0]
	assert.Equal(t, want, m.Meta().Headers)
	sink, err := NewSink("next", text(), c.seed())
	require.NoError(t, err)
	defer sink.Close()
	require.NoError(t, sink.PutAll(t.Context(), []delivery.Message[string]{m}))
	assert.Equal(t, want, receive(t, c.source("next"), 1)[0].Meta().Headers)
}

func header(name string, value []byte) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: value}
}

func TestHeadersOfOthersAreRead(t *testing.T) {
	due := time.UnixMilli(1_800_000_000_123).UTC()
	for _, prefix := range []string{"kafka_dlt-", "kafka_"} {
		r := &kgo.Record{Topic: "orders-retry-0", Partition: 1, Offset: 5, Key: []byte("k"), Headers: []kgo.RecordHeader{
			header(prefix+"original-topic", []byte("orders")),
			header(prefix+"original-partition", binary.BigEndian.AppendUint32(nil, 7)),
			header(prefix+"original-offset", binary.BigEndian.AppendUint64(nil, 99)),
			header(prefix+"exception-message", []byte("no route")),
			header(prefix+"exception-fqcn", []byte("java.io.IOException")),
			header(prefix+"exception-stacktrace", []byte("at …")),
			header("retry_topic-attempts", big.NewInt(3).Bytes()),
			header("retry_topic-backoff-timestamp", big.NewInt(due.UnixMilli()).Bytes()),
		}}
		m, err := MetaFromRecord(r)
		require.NoError(t, err)
		assert.Equal(t, delivery.Meta{
			ID: "orders/7/99", Key: "k", Origin: delivery.Origin{Source: "orders", Partition: "7", Position: "99"},
			Visit: 2, Attempts: 2, Due: due, LastError: "no route", Reasons: []string{"java.io.IOException"},
			Headers: map[string]string{prefix + "exception-stacktrace": "at …"},
		}, m)
	}
	m, err := MetaFromRecord(&kgo.Record{Topic: "dlq", Headers: []kgo.RecordHeader{
		header("__connect.errors.topic", []byte("orders")),
		header("__connect.errors.partition", []byte("7")),
		header("__connect.errors.offset", []byte("99")),
		header("__connect.errors.exception.class.name", []byte("org.apache.kafka.connect.errors.DataException")),
		header("__connect.errors.exception.message", []byte("bad json")),
		header("__connect.errors.connector.name", []byte("jdbc")),
	}})
	require.NoError(t, err)
	assert.Equal(t, delivery.Meta{
		ID: "orders/7/99", Origin: delivery.Origin{Source: "orders", Partition: "7", Position: "99"},
		LastError: "bad json", Reasons: []string{"org.apache.kafka.connect.errors.DataException"},
		Headers: map[string]string{"__connect.errors.connector.name": "jdbc"},
	}, m)
	m, err = MetaFromRecord(&kgo.Record{Topic: "dlq", Offset: 3, Headers: []kgo.RecordHeader{
		header("kafka_dlt-original-offset", []byte("not a number")), header("retry_topic-attempts", nil),
	}})
	require.NoError(t, err)
	assert.Equal(t, "dlq/0/3", m.ID, "what cannot be read is left alone")
	assert.Len(t, m.Headers, 2)
	n, ok := bigEndian("\xff\xfe")
	assert.True(t, ok)
	assert.EqualValues(t, -2, n)
}

// TestACallInDoubtGoesToTheDeadLetters has a call fail that may have taken effect and must not happen twice.
func TestACallInDoubtGoesToTheDeadLetters(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders.1", "dead")
	retries := c.retries(Layer{Topic: "orders.1", Delay: time.Millisecond})
	c.produce("orders", 1, "0")
	m := receive(t, c.source("orders"), 1)[0]
	call := func(context.Context, string) (string, error) { return "", errors.New("down") }
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(call), 10*time.Second, 10, strategies.PolicyOf(strategies.NoRetry[string]()),
		asyncop.WithFailureSink(retries.Take), asyncop.WithLogger(silent))
	for m, err := range op.Messages(func(yield func(delivery.Message[string], error) bool) { yield(m, nil) }) {
		t.Error("there is no result", m.Value, err)
	}
	assert.Zero(t, c.length("orders.1", 1))
	dead := receive(t, c.source("dead"), 1)[0].Meta()
	assert.True(t, dead.OutcomeUnknown)
	assert.Equal(t, "down", dead.LastError)
}

func FuzzMetaFromRecord(f *testing.F) {
	f.Add("Weir-Visit", []byte("2"), "retry_topic-attempts", []byte{0xff})
	f.Add("kafka_dlt-original-offset", []byte{1, 2}, "kafka_dlt-original-topic", []byte("t"))
	f.Fuzz(func(t *testing.T, a string, av []byte, b string, bv []byte) {
		m, err := MetaFromRecord(&kgo.Record{Topic: "t", Headers: []kgo.RecordHeader{header(a, av), header(b, bv)}})
		if err != nil {
			return
		}
		if m.Visit < 0 || m.ID == "" {
			t.Fatalf("%+v", m)
		}
	})
}

func TestRetriesRefuses(t *testing.T) {
	for _, c := range []RetriesConfig[string]{
		{},
		{Codec: text()},
		{Codec: text(), DeadLetters: "dead", Layers: []Layer{{}}},
		{Codec: text(), DeadLetters: "dead", Layers: []Layer{{Topic: "dead"}}},
		{Codec: text(), DeadLetters: "dead", Layers: []Layer{{Topic: "a", Delay: -1}}},
		{Codec: text(), DeadLetters: "dead", Layers: []Layer{{Topic: "a", Jitter: 2}}},
	} {
		_, err := NewRetries(c)
		require.Error(t, err)
	}
	c := newCluster(t, 1, "dead")
	r := c.retries()
	require.ErrorContains(t, r.Take(t.Context(), asyncop.Failure[string]{Err: errors.New("x"), Abandoned: true}), "cut off")
}

// Failures go where those of a queue go: a message does not wait beyond its deadline, and one that is no message has an id.
func TestRetriesRouteAsQueuesDo(t *testing.T) {
	c := newCluster(t, 1, "1h", "dead")
	r := c.retries(Layer{Topic: "1h", Delay: time.Hour})
	late := delivery.ContextWithMeta(t.Context(), delivery.Meta{ID: "late", Provider: "north", Deadline: time.Now().Add(time.Minute)})
	require.NoError(t, r.Take(late, asyncop.Failure[string]{Element: "x", Err: errors.New("busy"), InDoubt: false, Reason: predicates.NewReason("BUSY", true, false), Verdict: strategies.Refused}))
	require.NoError(t, r.Take(t.Context(), asyncop.Failure[string]{Element: "y", Err: errors.New("refused"), Reason: predicates.NewRejection("NO"), Verdict: strategies.Refused}))
	dead := receive(t, c.source("dead"), 2)
	require.Equal(t, "late", dead[0].Meta().ID)
	require.Equal(t, "north", dead[0].Meta().Provider)
	require.NotEmpty(t, dead[1].Meta().ID)
	require.NotEqual(t, dead[1].Meta().Origin.ID(), dead[1].Meta().ID, "not that of its record")
}
