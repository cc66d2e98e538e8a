package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/message"
)

// cluster is a Kafka in memory (kfake is no server for users), or a real one: WEIR_KAFKA.
type cluster struct {
	t     testing.TB
	addrs []string
	fake  *kfake.Cluster // nil if the Kafka is real
	admin *kgo.Client
}

func newCluster(t testing.TB, partitions int32, topics ...string) *cluster {
	t.Helper()
	c := &cluster{t: t}
	if clustertest.Libs() != "" {
		c.addrs = realBroker(t)
		c.admin = c.client()
		c.seedTopics(partitions, topics)
		return c
	}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	c.fake, c.addrs = k, k.ListenAddrs()
	c.admin = c.client()
	c.seedTopics(partitions, topics)
	return c
}

// seedTopics creates topics. Dead letters are kept forever, as an engine requires.
func (c *cluster) seedTopics(partitions int32, topics []string) {
	c.t.Helper()
	for _, topic := range topics {
		configs := map[string]string{}
		if strings.HasSuffix(topic, "-dead") {
			configs["retention.ms"] = "-1"
		}
		require.NoError(c.t, c.CreateTopic(topic, partitions, configs))
	}
}

// inMemory returns the Kafka in memory. A test that calls it is skipped on a real one.
func (c *cluster) inMemory() *kfake.Cluster {
	c.t.Helper()
	if c.fake == nil {
		c.t.Skip("skipped: only kfake can do this")
	}
	return c.fake
}

// Fault lets requests fail.
func (c *cluster) Fault(f kfake.Fault) *kfake.FaultHandle {
	c.t.Helper()
	return c.inMemory().Fault(f)
}

// CreateTopic creates a topic, and returns when brokers know it.
func (c *cluster) CreateTopic(topic string, partitions int32, configs map[string]string) error {
	c.t.Helper()
	values := map[string]*string{}
	for key, value := range configs {
		values[key] = &value
	}
	created, err := kadm.NewClient(c.admin).CreateTopic(c.t.Context(), partitions, -1, values, topic)
	if err = errors.Join(err, created.Err); err != nil {
		return err
	}
	eventually(c.t, func() bool {
		ends, err := kadm.NewClient(c.admin).ListEndOffsets(c.t.Context(), topic)
		return err == nil && ends.Error() == nil && len(ends[topic]) == int(partitions)
	}, "the topic is there")
	return nil
}

// settled waits until the last transaction of an id has ended. Brokers confirm its end
// before readers see it.
func (c *cluster) settled(id string) {
	c.t.Helper()
	eventually(c.t, func() bool {
		of, err := kadm.NewClient(c.admin).DescribeTransactions(context.Background(), id)
		return err == nil && !strings.HasPrefix(of[id].State, "Prepare")
	}, "the transaction has ended")
}

// DeleteRecords removes the records of a partition below an offset, as the retention of a
// topic does.
func (c *cluster) DeleteRecords(topic string, partition int32, below int64) error {
	c.t.Helper()
	at := kadm.Offsets{}
	at.Add(kadm.Offset{Topic: topic, Partition: partition, At: below})
	deleted, err := kadm.NewClient(c.admin).DeleteRecords(c.t.Context(), at)
	return errors.Join(err, deleted.Error())
}

// start and end return the first offset of a partition, and that behind the last one.
func (c *cluster) start(topic string, partition int32) int64 {
	c.t.Helper()
	return c.look(topic, partition, kadm.NewClient(c.admin).ListStartOffsets)
}

func (c *cluster) end(topic string, partition int32) int64 {
	c.t.Helper()
	return c.look(topic, partition, kadm.NewClient(c.admin).ListEndOffsets)
}

func (c *cluster) look(topic string, partition int32, list func(context.Context, ...string) (kadm.ListedOffsets, error)) int64 {
	c.t.Helper()
	return ask(c, func() (int64, error) {
		all, err := list(context.Background(), topic)
		o, ok := all.Lookup(topic, partition)
		if err == nil && !ok {
			err = fmt.Errorf("topic %s has no partition %d", topic, partition)
		}
		return o.Offset, cmp.Or(err, o.Err)
	})
}

// ask repeats a question for as long as killed brokers may need to return.
func ask[T any](c *cluster, question func() (T, error)) T {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		answer, err := question()
		if err == nil {
			return answer
		}
		if c.fake != nil || time.Now().After(end) {
			require.NoError(c.t, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

const lastSegment = "the last segment"

// compact removes older values of keys. A real broker leaves the last segment of the
// partition alone.
func (c *cluster) compact(topic string) {
	c.t.Helper()
	if c.fake != nil {
		c.fake.Compact()
		return
	}
	time.Sleep(200 * time.Millisecond) // segment.ms
	require.NoError(c.t, c.write(topic, 1, lastSegment))
	eventually(c.t, func() bool {
		n := map[string]int{}
		for _, e := range must(c.view(topic, "nobody").List(c.t.Context(), store.Filter{}, allOfIt)) {
			n[e.Meta.Key]++
		}
		return slices.Max(slices.Collect(maps.Values(n))) == 1
	}, "the topic is compacted")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// requests counts requests of a kind that clients send.
type requests struct {
	kind kmsg.Key
	n    atomic.Int64
	then func(n int64)
}

func newRequests(kind kmsg.Key, then func(n int64)) *requests {
	return &requests{kind: kind, then: then}
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (r *requests) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if kmsg.Key(key) == r.kind {
		if n := r.n.Add(1); r.then != nil {
			r.then(n)
		}
	}
}

func (c *cluster) client(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{c.seed()}, opts...)...)
	require.NoError(c.t, err)
	c.t.Cleanup(client.Close)
	return client
}

func (c *cluster) seed() kgo.Opt { return kgo.SeedBrokers(c.addrs...) }

// quick are options of a client for tests: brokers answer at once. Its session outlasts
// any test, so that a busy machine throws no member out.
func (c *cluster) quick() sourceOption { return withClient(append(quickly(), c.seed())...) }

func quickly() []kgo.Opt {
	return []kgo.Opt{
		kgo.FetchMaxWait(50 * time.Millisecond), kgo.HeartbeatInterval(50 * time.Millisecond),
		kgo.SessionTimeout(2 * time.Minute), kgo.RebalanceTimeout(5 * time.Second),
	}
}

// dropped is the session of sources that a test drops: others wait for its end.
func dropped() sourceOption { return withClient(kgo.SessionTimeout(2 * time.Second)) }

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func (c *cluster) source(topic string, opts ...sourceOption) *testSource {
	c.t.Helper()
	s, err := c.open(topic, opts...)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func (c *cluster) open(topic string, opts ...sourceOption) (*testSource, error) {
	opts = append([]sourceOption{c.quick(), withLogger(silent), withCommitInterval(20 * time.Millisecond)}, opts...)
	return newTestSource("group", []string{topic}, opts...)
}

func text() codec.Codec[string] {
	return codec.Func(
		func(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil },
		func(src []byte) (string, error) { return string(src), nil },
	)
}

// produce writes values to a partition each in turn.
func (c *cluster) produce(topic string, partitions int, values ...string) {
	c.t.Helper()
	require.NoError(c.t, c.write(topic, partitions, values...))
}

func (c *cluster) write(topic string, partitions int, values ...string) error {
	client, err := kgo.NewClient(c.seed(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, len(values))
	for i, v := range values {
		records[i] = &kgo.Record{Topic: topic, Partition: int32(i % partitions), Key: []byte("key " + v), Value: []byte(v)}
	}
	return client.ProduceSync(context.Background(), records...).FirstErr()
}

// committed returns what a group has committed of a partition.
func (c *cluster) committed(topic string, partition int32) kadm.OffsetResponse {
	c.t.Helper()
	return ask(c, func() (kadm.OffsetResponse, error) {
		all, err := kadm.NewClient(c.admin).FetchOffsets(c.t.Context(), "group")
		o, _ := all.Lookup(topic, partition)
		return o, cmp.Or(err, o.Err)
	})
}

// behind returns how many records of "orders" are not committed.
func (c *cluster) behind(partitions int32) (n int64) {
	for p := range partitions {
		n += c.end("orders", p) - c.committed("orders", p).At
	}
	return n
}

// receive receives n messages.
func receive(t testing.TB, s delivery.Source[string], n int) []message.Message[string] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []message.Message[string]
	for len(all) < n {
		ms, err := s.Receive(ctx, n-len(all))
		require.NoError(t, err)
		all = append(all, ms...)
	}
	return all
}

// nothing checks that no message arrives for a while.
func nothing(t testing.TB, s delivery.Source[string], d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	ms, err := s.Receive(ctx, 10)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, ms)
}

func values(ms []message.Message[string]) (vs []string) {
	for _, m := range ms {
		vs = append(vs, m.Value)
	}
	return vs
}

func numbers(n int) (vs []string) {
	for i := range n {
		vs = append(vs, strconv.Itoa(i))
	}
	return vs
}

// engine opens an engine for tests.
func (c *cluster) engine(opts ...Option) *Engine {
	c.t.Helper()
	quick := []Option{WithCommitInterval(20 * time.Millisecond), WithClientOptions(quickly()...)}
	e, err := Open(c.t.Context(), "kafka://"+strings.Join(c.addrs, ","), append(quick, opts...)...)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = e.Close() })
	return e
}

// testSource is a source of texts.
type testSource struct{ *source }

func (s *testSource) Receive(ctx context.Context, n int) ([]message.Message[string], error) {
	raw, err := s.source.Receive(ctx, n)
	ms := make([]message.Message[string], len(raw))
	for i, m := range raw {
		ms[i] = message.With(m, string(m.Value))
	}
	if err != nil {
		return nil, err
	}
	return ms, nil
}

type sourceOption func(*sourceSettings)

func newTestSource(group string, topics []string, opts ...sourceOption) (*testSource, error) {
	set := sourceSettings{
		clock: clock.New(), logger: slog.Default(), commitInterval: time.Second, settleTime: 5 * time.Second, metadata: maxMetadata,
		dead:   (&box{}).put,
		others: func(context.Context) ([]string, error) { return nil, nil },
	}
	for _, opt := range opts {
		opt(&set)
	}
	s, err := newSource(group, topics, set)
	if err != nil {
		return nil, err
	}
	return &testSource{s}, nil
}

func withClient(opts ...kgo.Opt) sourceOption {
	return func(s *sourceSettings) { s.client = append(s.client, opts...) }
}

func withCommitInterval(d time.Duration) sourceOption {
	return func(s *sourceSettings) { s.commitInterval = d }
}

func withSettleTime(d time.Duration) sourceOption {
	return func(s *sourceSettings) { s.settleTime = d }
}

func withMetadataLimit(n int) sourceOption   { return func(s *sourceSettings) { s.metadata = n } }
func withDeadLetters(f putFunc) sourceOption { return func(s *sourceSettings) { s.dead = f } }
func withClock(c clock.Clock) sourceOption   { return func(s *sourceSettings) { s.clock = c } }

func withLogger(l *slog.Logger) sourceOption { return func(s *sourceSettings) { s.logger = l } }
