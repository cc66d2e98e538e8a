package kafka

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/strategies"
)

// TestQueueAsASource runs the suite over a queue on the engine: TestSource lists the
// parts that are left out.
func TestQueueAsASource(t *testing.T) {
	t.Parallel()
	const partitions = 3
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		c := newCluster(t, partitions, "orders", "orders-retry-1", "orders-dead")
		orders := queueOn(c.engine(), "orders", delivery.Layer{Delay: time.Minute})
		return deliverytest.Queue[string]{
			Open:  func() (delivery.Source[string], error) { return orders.Source(nil), nil },
			Put:   func(values ...string) error { return c.write("orders", partitions, values...) },
			Keeps: true,
		}
	}, strconv.Itoa)
}

func TestOpenRefuses(t *testing.T) {
	for _, address := range []string{"", "kafka://", "broker", "kafka://user:s3cr3t@broker:9092", "nats://broker:9092/x", "broker:9092?tls=true", "a:1,,b:2"} {
		_, err := Open(t.Context(), address)
		require.ErrorContains(t, err, "kafka: the address must be kafka://HOST:PORT", address)
		require.NotContains(t, err.Error(), "s3cr3t")
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	_, err := Open(ctx, "127.0.0.1:1")
	require.ErrorIs(t, err, cause, "brokers that are away are waited for")
}

// A missing topic is made, or is an error that contains the command to make it. Calls do
// not wait for it in silence.
func TestTopicsThatAreMissing(t *testing.T) {
	c := newCluster(t, 1)
	e := c.engine()
	orders := queueOn(e, "orders", delivery.Layer{Delay: time.Minute})
	err := orders.Put(t.Context(), "v")
	require.ErrorContains(t, err, "kafka-topics.sh --bootstrap-server HOST:PORT --create --topic orders")
	require.ErrorContains(t, err, "let the engine do so by WithPartitions")
	require.True(t, guard.IsPermanent(err), "it ends a run")
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) { return v, nil }), time.Minute, 10,
		asyncop.WithFailureSink(orders.TakeFailure))
	_, err = delivery.Run(t.Context(), orders, op, queueOn(e, "done"), delivery.WithLogger(silent))
	require.ErrorContains(t, err, "the topics orders-retry-1, orders-dead, orders are missing")

	e = c.engine(WithPartitions(3), WithReplicas(1))
	orders = queueOn(e, "orders", delivery.Layer{Delay: time.Minute})
	s := orders.Source(nil)
	defer s.Close(context.Background())
	require.NoError(t, orders.Put(t.Context(), "v"))
	receive(t, s, 1)[0].Ack()
	topics, err := kadm.NewClient(c.admin).ListTopics(t.Context(), "orders", "orders-dead", "orders-retry-1")
	require.NoError(t, err)
	for _, topic := range topics.Sorted() {
		require.NoError(t, topic.Err)
		require.Len(t, topic.Partitions, 3)
	}
	for topic, age := range map[string]string{"orders": "604800000", "orders-retry-1": "604800000", "orders-dead": "-1"} { // law D5
		require.Equal(t, age, c.configOf(topic, "retention.ms"), topic)
		require.Equal(t, "-1", c.configOf(topic, "retention.bytes"), topic)
		require.Equal(t, "delete", c.configOf(topic, "cleanup.policy"), topic)
	}
	_, err = c.engine(WithPartitions(1), WithReplicas(5)).Consume(t.Context(), store.Consumption{Queue: "others", Dead: "others-dead"})
	require.ErrorIs(t, err, kerr.InvalidReplicationFactor)
	require.True(t, guard.IsPermanent(err))
}

// Messages of topics that others write fail into the layers and dead letters of the
// queue, with all bytes and headers that came, also over a merge (law W2).
func TestWithTopics_MessagesAsReceived(t *testing.T) {
	type amount struct{ Cents int }
	c := newCluster(t, 1, "orders", "billing-retry-1", "billing-retry-9", "billing-dead", "again")
	e := c.engine(WithTopics("billing", "orders"))
	billing := delivery.NewQueue[amount](e, "billing", delivery.WithLayers(delivery.Layer{Delay: time.Millisecond}), delivery.WithLogger(silent))
	const whole = `{"Cents":7, "Note":"a field that the type lacks"}`
	headers := []kgo.RecordHeader{
		header("trace", []byte("first")), header("trace", []byte("second\xff")), header("trace", []byte("last")), header("other", nil),
	}
	require.NoError(t, c.client().ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Key: []byte("k"), Value: []byte(whole), Headers: headers}).FirstErr())
	require.NoError(t, e.Put(t.Context(), "billing-retry-9", store.Message{Meta: message.Meta{ID: "of another version", Visit: 1}, Payload: []byte(`{"Cents":9}`)}))
	require.NoError(t, billing.Put(t.Context(), amount{8}))

	s := billing.Source(nil)
	defer s.Close(context.Background())
	seen := map[int]int{}
	for len(seen) < 3 || seen[7] < 2 {
		ms, err := s.Receive(t.Context(), 1)
		require.NoError(t, err)
		seen[ms[0].Value.Cents]++
		if ms[0].Value.Cents == 7 {
			ctx := message.NewContext(t.Context(), ms[0])
			require.NoError(t, billing.TakeFailure(ctx, asyncop.Failure[amount]{Element: ms[0].Value, Err: errors.New("down"), NoRetryReason: strategies.Refused}))
		}
		ms[0].Ack()
	}
	require.Equal(t, map[int]int{7: 2, 8: 1, 9: 1}, seen)
	require.EqualValues(t, 2, c.end("orders", 0), "what is put goes to the topic")

	v := c.view("billing-dead", "")
	_, err := v.Merge(t.Context(), jobs.Spec{To: "again"}, nil)
	require.NoError(t, err)
	fetches := c.client(kgo.ConsumeTopics("again"), kgo.FetchIsolationLevel(kgo.ReadCommitted())).PollFetches(t.Context())
	require.NoError(t, fetches.Err())
	r := fetches.Records()[0]
	assert.Equal(t, whole, string(r.Value))
	assert.Equal(t, "k", string(r.Key))
	var got []string
	for _, h := range r.Headers {
		if !strings.HasPrefix(h.Key, "Weir-") {
			got = append(got, h.Key+"="+string(h.Value))
		}
	}
	assert.Equal(t, []string{"other=", "trace=first", "trace=second\xff", "trace=last"}, got)
}

// A record whose value cannot be decoded becomes a dead letter with its bytes, and does
// not delay others.
func TestSource_CannotBeDecoded(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders-dead")
	c.produce("orders", 1, "1", "x", "2")
	s := delivery.NewQueue[int](c.engine(), "orders", delivery.WithCodec(codec.JSON[int]()), delivery.WithLogger(silent)).Source(nil)
	defer s.Close(context.Background())
	for n := 0; n < 2; {
		ms, err := s.Receive(t.Context(), 10)
		require.NoError(t, err)
		for _, m := range ms {
			m.Ack()
			n++
		}
	}
	v := c.view("orders-dead", "")
	eventually(t, func() bool {
		v = c.view("orders-dead", "")
		return must(v.Count(t.Context(), store.Filter{})).Messages == 1
	}, "it is a dead letter")
	e := must(v.List(t.Context(), store.Filter{}, allOfIt))[0]
	assert.Equal(t, store.Undecodable, e.Cause)
	assert.Equal(t, "x", string(e.Payload))
	assert.Regexp(t, `^orders:[\w-]{8}/0/1$`, e.Meta.ID)
}

// A broker that takes less metadata than is usual gets less.
func TestMetadataThatIsTooLarge(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.inMemory().ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		req := r.(*kmsg.OffsetCommitRequest)
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				if p.Metadata == nil || len(*p.Metadata) <= 300 {
					continue
				}
				resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
				at := kmsg.NewOffsetCommitResponseTopic()
				at.Topic, at.TopicID = topic.Topic, topic.TopicID
				of := kmsg.NewOffsetCommitResponseTopicPartition()
				of.Partition, of.ErrorCode = p.Partition, kerr.OffsetMetadataTooLarge.Code
				at.Partitions = append(at.Partitions, of)
				resp.Topics = append(resp.Topics, at)
				return resp, nil, true
			}
		}
		return nil, nil, false
	})
	s := c.source("orders", withCommitInterval(time.Hour))
	eventually(t, func() bool { return owned(s) == 1 }, "it has the partition")
	offsets := make([]int64, 4000)
	for i := range offsets {
		offsets[i] = int64(i)
	}
	arriving(s, nil, offsets...)
	for i, m := range receive(t, s, len(offsets)) {
		if i%2 == 1 {
			m.Ack()
		}
	}
	tries := 1
	for ; tries < 10; tries++ {
		err := s.commit(t.Context())
		if err == nil {
			break
		}
		require.ErrorIs(t, err, kerr.OffsetMetadataTooLarge)
	}
	require.Equal(t, 5, tries, "4,096 characters were halved until they were taken")
	require.NotEmpty(t, c.committed("orders", 0).Metadata)
}

// After Close an engine refuses calls, and its workers have ended.
func TestCloseOfAnEngine(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders-dead")
	e := c.engine()
	orders := queueOn(e, "orders")
	s := orders.Source(nil)
	require.NoError(t, orders.Put(t.Context(), "v"))
	receive(t, s, 1)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, orders.Put(t.Context(), "v"), store.ErrClosed)
	_, err := s.Receive(t.Context(), 1)
	require.Error(t, err)
	require.NoError(t, s.Close(t.Context()))
	_, err = orders.Source(nil).Receive(t.Context(), 1)
	require.ErrorIs(t, err, store.ErrClosed)
}

// silentListener returns an address that takes connections and never answers, as a broker
// does whose process was stopped. (The kernel completes the connections.)
func silentListener(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// The broker that the address names first accepts connections and is silent.
func TestOpen_FirstBrokerIsSilent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders", "orders-dead")
	c.inMemory()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the client waits 10 s for a broker
	defer cancel()
	e, err := Open(ctx, silentListener(t)+","+silentListener(t)+","+c.addrs[0], WithClientOptions(quickly()...))
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	orders := queueOn(e, "orders")
	require.NoError(t, orders.Put(ctx, "v"), "the client knows the broker that has answered")
	s := orders.Source(nil)
	defer s.Close(context.Background())
	receive(t, s, 1)[0].Ack()
}

// All brokers but the last of many are silent.
func TestPing_LastBrokerAnswers(t *testing.T) {
	c := newCluster(t, 1)
	addrs := make([]string, 9, 10)
	for i := range addrs {
		addrs[i] = silentListener(t)
	}
	client, err := makeClient(kgo.SeedBrokers(append(addrs, c.addrs...)...))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), lookEvery)
	defer cancel()
	require.NoError(t, Ping(ctx, client))
	require.NotEmpty(t, client.DiscoveredBrokers())
	missing, err := missingTopics(t.Context(), client, []string{"none"})
	require.NoError(t, err)
	require.Equal(t, []string{"none"}, missing)
}

// The error has the reasons if all brokers are unavailable.
func TestPing_NoBrokerAnswers(t *testing.T) {
	client, err := makeClient(kgo.SeedBrokers("127.0.0.1:1", silentListener(t)))
	require.NoError(t, err)
	defer client.Close()
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
	defer cancel()
	err = Ping(ctx, client)
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, "connection refused")
}
