package kafka

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
)

// cluster is a Kafka in memory. It is no server for users.
type cluster struct {
	*kfake.Cluster
	t     testing.TB
	admin *kgo.Client
}

func newCluster(t testing.TB, partitions int32, topics ...string) *cluster {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topics...),
		kfake.GroupMinSessionTimeout(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	c := &cluster{Cluster: k, t: t}
	c.admin = c.client()
	return c
}

func (c *cluster) client(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{c.seed()}, opts...)...)
	require.NoError(c.t, err)
	c.t.Cleanup(client.Close)
	return client
}

func (c *cluster) seed() kgo.Opt { return kgo.SeedBrokers(c.ListenAddrs()...) }

// quick are options of a client for tests: brokers answer at once. Its session outlasts any test, so that a busy machine throws no member out.
func (c *cluster) quick() SourceOption {
	return WithClient(c.seed(), kgo.FetchMaxWait(50*time.Millisecond), kgo.HeartbeatInterval(50*time.Millisecond),
		kgo.SessionTimeout(2*time.Minute), kgo.RebalanceTimeout(5*time.Second))
}

// dropped is the session of sources that a test drops: others wait for its end.
func dropped() SourceOption { return WithClient(kgo.SessionTimeout(2 * time.Second)) }

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func (c *cluster) source(topic string, opts ...SourceOption) *Source[string] {
	c.t.Helper()
	s, err := c.open(topic, opts...)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func (c *cluster) open(topic string, opts ...SourceOption) (*Source[string], error) {
	opts = append([]SourceOption{c.quick(), WithLogger(silent), WithCommitInterval(20 * time.Millisecond)}, opts...)
	return NewSource("group", []string{topic}, text(), opts...)
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
	all, err := kadm.NewClient(c.admin).FetchOffsets(c.t.Context(), "group")
	require.NoError(c.t, err)
	o, _ := all.Lookup(topic, partition)
	return o
}

// behind returns how many records of "orders" are not committed.
func (c *cluster) behind(partitions int32) (n int64) {
	for p := range partitions {
		n += c.PartitionInfo("orders", p).HighWatermark - c.committed("orders", p).At
	}
	return n
}

// receive receives n messages.
func receive(t testing.TB, s delivery.Source[string], n int) []delivery.Message[string] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []delivery.Message[string]
	for len(all) < n {
		ms, err := s.Receive(ctx, n-len(all))
		require.NoError(t, err)
		all = append(all, ms...)
	}
	return all
}

// nothing checks that nothing comes for a while.
func nothing(t testing.TB, s delivery.Source[string], d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	ms, err := s.Receive(ctx, 10)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, ms)
}

func values(ms []delivery.Message[string]) (vs []string) {
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
