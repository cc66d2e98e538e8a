package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// queueOn returns a queue of texts.
func queueOn(e store.Engine, name string, layers ...delivery.Layer) *delivery.Queue[string] {
	return delivery.NewQueue[string](e, name, delivery.WithCodec(text()), delivery.WithLayers(layers...), delivery.WithLogger(silent))
}

// A queue on Kafka behaves like a queue on another engine: layers, dead letters, results
// in another queue.
func TestQueue(t *testing.T) {
	t.Parallel()
	const delay1, delay2 = 100 * time.Millisecond, 200 * time.Millisecond
	c := newCluster(t, 2, "orders", "orders-dead")
	e := c.engine(WithPartitions(2), WithReplicas(1)) // it makes the others
	orders := queueOn(e, "orders", delivery.Layer{Delay: delay1, Jitter: 0.5}, delivery.Layer{Delay: delay2})
	c.produce("orders", 2, numbers(30)...)

	var mu sync.Mutex
	calls, done := map[string][]time.Time{}, map[string]bool{}
	call := func(ctx context.Context, v string) (string, error) {
		meta, _ := message.MetaFromContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		calls[v] = append(calls[v], time.Now())
		assert.Equal(t, len(calls[v]), meta.Visit)
		n, _ := strconv.Atoi(v)
		switch {
		case n%10 == 1: // poison
			return "", errors.New("down")
		case n%10 == 2:
			return "", predicates.WithReason(errors.New("refused"), predicates.NewRejection("NO"))
		case n%3 == 0 && meta.Visit < 3:
			return "", errors.New("down")
		}
		return v, nil
	}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(call), 10*time.Second, 100, strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent(),
		asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(silent))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() {
		defer cancel()
		s := c.source("done")
		for n := 0; n < 24; n++ {
			ms, err := s.Receive(ctx, 1)
			if !assert.NoError(t, err) {
				return
			}
			done[ms[0].Value] = true
			ms[0].Ack()
		}
		eventually(t, func() bool { return c.length("orders-dead", 2) == 6 }, "dead letters")
	}()
	_, err := delivery.Run(ctx, orders, op, queueOn(e, "done"), delivery.WithLogger(silent), delivery.WithFloodGuard(1, 100))
	require.NoError(t, err)
	for v, at := range calls {
		for i := 1; i < len(at); i++ { // law D3
			assert.GreaterOrEqual(t, at[i].Sub(at[i-1]), []time.Duration{delay1, delay2}[i-1], v)
		}
	}
	<-ctx.Done()
	require.Len(t, done, 24)
	for _, m := range receive(t, c.source("orders-dead"), 6) {
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
			assert.Equal(t, "NO: refused", meta.LastError)
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
	require.NoError(t, c.engine().Put(t.Context(), "dead", store.Message{
		Meta:    message.Meta{ID: "i", Key: "k", Origin: message.Origin{Source: "orders", Partition: "3", Position: "1234567890123"}, LastError: "down"},
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

// A layer waits as long as a server demands (law D3), and at least its own delay.
func TestLayer_DemandedWait(t *testing.T) {
	c := newCluster(t, 1, "orders-retry-1")
	r := queueOn(c.engine(), "orders", delivery.Layer{Delay: time.Minute})
	for i, demand := range []time.Duration{time.Hour, time.Second} {
		ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: numbers(2)[i]})
		f := asyncop.Failure[string]{Element: "v", Err: errors.New("429"), Demanded: demand, NoRetryReason: strategies.Refused}
		require.NoError(t, r.TakeFailure(ctx, f))
	}
	view := c.view("orders-retry-1", "nobody")
	entries, err := view.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for i, want := range []time.Duration{time.Hour, time.Minute} {
		assert.WithinDuration(t, time.Now().Add(want), entries[i].Meta.Due, 30*time.Second)
	}
}

// Regression (law D4): a failure whose partition lacks replicas in sync does not delay
// others. Its put never ended.
func TestLayer_PartitionThatTakesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders-retry-1")
	wait := func(e *Engine) any { return e.producer.client.OptValue(kgo.RecordDeliveryTimeout) }
	assert.Equal(t, putWait, wait(c.engine()))
	e := c.engine(WithClientOptions(
		kgo.RecordDeliveryTimeout(time.Second),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, _ int) int { return int(r.Key[0] - '0') }
		})),
	))
	require.Equal(t, time.Second, wait(e), "what users set counts")
	q := queueOn(e, "orders", delivery.Layer{Delay: time.Minute})
	down := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{0}, Err: kerr.NotEnoughReplicas, Count: -1})
	take := func(key string) error {
		ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: key, Key: key})
		return q.TakeFailure(ctx, asyncop.Failure[string]{Element: "v", Err: errors.New("down"), NoRetryReason: strategies.Refused})
	}
	require.ErrorIs(t, take("0"), kgo.ErrRecordTimeout)
	require.NoError(t, take("1"))
	assert.EqualValues(t, 1, c.length("orders-retry-1", 2))
	down.Remove()
	require.NoError(t, take("0"))
	assert.EqualValues(t, 2, c.length("orders-retry-1", 2))
}

// Law W4: a worker finds a layer that another version of the program adds while it runs.
func TestLayer_AddedLater(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders-retry-1", "orders-dead")
	mock := clock.NewMock()
	e := c.engine(WithCommitInterval(time.Hour), WithClientOptions(kgo.MetadataMinAge(10*time.Millisecond)))
	r, err := e.Consume(t.Context(), store.Consumption{
		Queue: "orders", Layers: []string{"orders-retry-1"}, Dead: "orders-dead", Clock: mock, Logger: silent,
		IsLayer: func(topic string) bool { return strings.HasPrefix(topic, "orders-retry-") },
	})
	require.NoError(t, err)
	s := &testSource{r.(*source)}
	c.produce("orders", 1, "a")
	require.Equal(t, []string{"a"}, values(receive(t, s, 1)))
	for _, topic := range []string{"orders-retry-2", "others-retry-2"} {
		require.NoError(t, c.CreateTopic(topic, 1, nil))
		c.produce(topic, 1, topic)
	}
	came := make(chan []message.Message[string], 1)
	go func() {
		ms, _ := s.Receive(t.Context(), 10)
		came <- ms
	}()
	eventually(t, func() bool {
		mock.Add(lookAgain) // once is enough, unless the client answers from its cache
		return len(came) > 0
	}, "the layer is found")
	require.Equal(t, []string{"orders-retry-2"}, values(<-came))
	require.ElementsMatch(t, []string{"orders", "orders-retry-1", "orders-retry-2"}, s.client.GetConsumeTopics(), "not those of another queue")
}

// Law W4: a record of a later version is delivered, and its unknown parts are passed on:
// to the dead letters, with a merge, and by a sink.
func TestRecord_LaterVersion(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders-dead", "again", "next")
	r := &kgo.Record{Topic: "orders", Value: []byte("v"), Headers: []kgo.RecordHeader{
		header("Weir-Tenant", []byte("north%20")), header("Weir-Meta-later", []byte(`{"a":1}`)),
	}}
	require.NoError(t, c.client().ProduceSync(t.Context(), r).FirstErr())
	want := map[string]string{"Weir-Tenant": "north%20", "Weir-Meta-later": `{"a":1}`}
	e := c.engine()
	s := queueOn(e, "orders").Source(nil)
	m := receive(t, s, 1)[0]
	assert.Equal(t, want, m.Meta().Headers)
	m.Reject(errors.New("no"))
	require.NoError(t, s.Close(t.Context()))
	view := c.view("orders-dead", "")
	letters, err := view.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	assert.Equal(t, want, letters[0].Meta.Headers)
	_, err = view.Merge(t.Context(), jobs.Spec{To: "again"}, nil)
	require.NoError(t, err)
	m = receive(t, c.source("again"), 1)[0]
	assert.Equal(t, want, m.Meta().Headers)
	require.NoError(t, queueOn(e, "next").PutAll(t.Context(), []message.Message[string]{m}))
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
		m, err := metaOf(r, "")
		require.NoError(t, err)
		assert.Equal(t, message.Meta{
			ID: "orders/7/99", Key: "k", Origin: message.Origin{Source: "orders", Partition: "7", Position: "99"},
			Visit: 2, Attempts: 2, Due: due, LastError: "no route", Reasons: []string{"java.io.IOException"},
			Headers: map[string]string{prefix + "exception-stacktrace": "at …"},
		}, m)
	}
	m, err := metaOf(&kgo.Record{Topic: "dlq", Headers: []kgo.RecordHeader{
		header("__connect.errors.topic", []byte("orders")),
		header("__connect.errors.partition", []byte("7")),
		header("__connect.errors.offset", []byte("99")),
		header("__connect.errors.exception.class.name", []byte("org.apache.kafka.connect.errors.DataException")),
		header("__connect.errors.exception.message", []byte("bad json")),
		header("__connect.errors.connector.name", []byte("jdbc")),
	}}, "")
	require.NoError(t, err)
	assert.Equal(t, message.Meta{
		ID: "orders/7/99", Origin: message.Origin{Source: "orders", Partition: "7", Position: "99"},
		LastError: "bad json", Reasons: []string{"org.apache.kafka.connect.errors.DataException"},
		Headers: map[string]string{"__connect.errors.connector.name": "jdbc"},
	}, m)
	m, err = metaOf(&kgo.Record{Topic: "dlq", Offset: 3, Headers: []kgo.RecordHeader{
		header("kafka_dlt-original-offset", []byte("not a number")), header("retry_topic-attempts", nil),
	}}, "")
	require.NoError(t, err)
	assert.Equal(t, "dlq/0/3", m.ID, "what cannot be read is left alone")
	assert.Len(t, m.Headers, 2)
	n, ok := bigEndian("\xff\xfe")
	assert.True(t, ok)
	assert.EqualValues(t, -2, n)
}

// Regression (law W2): the content of headers can be stored. A message whose headers were
// too long, or whose number of visits was the highest, reached neither the dead letters
// nor the layers, and blocked its partition.
func TestRecord_HeadersCanBeStored(t *testing.T) {
	for name, headers := range map[string][]kgo.RecordHeader{
		"spring": {
			header(springTopic, bytes.Repeat([]byte("t"), 1025)), header(springPartition, []byte{0, 0, 0, 1}), header(springOffset, []byte{1}),
		},
		"connect": {
			header(connectTopic, []byte("t")), header(connectPartition, bytes.Repeat([]byte("1"), 1025)), header(connectOffset, []byte("1")),
		},
		"id":     {header(springTopic, bytes.Repeat([]byte("t"), 1024)), header(springPartition, []byte{1}), header(springOffset, []byte{1})},
		"visits": {header("Weir-Visit", []byte("9223372036854775807"))},
	} {
		m, _ := metaOf(&kgo.Record{Topic: "orders", Headers: headers}, "") // only sound headers
		m.Visit++
		_, err := record("orders-dead", nil, m)
		require.NoError(t, err, name)
	}
}

func FuzzMetaOf(f *testing.F) {
	f.Add("Weir-Visit", []byte("2"), "retry_topic-attempts", []byte{0xff})
	f.Add("kafka_dlt-original-offset", []byte{1, 2}, "kafka_dlt-original-topic", []byte("t"))
	f.Fuzz(func(t *testing.T, a string, av []byte, b string, bv []byte) {
		m, err := metaOf(&kgo.Record{Topic: "t", Headers: []kgo.RecordHeader{header(a, av), header(b, bv)}}, "")
		if err != nil {
			return
		}
		if m.Visit < 0 || m.ID == "" {
			t.Fatalf("%+v", m)
		}
		if _, err := record("dead", nil, m); err != nil {
			t.Fatal(err)
		}
	})
}
