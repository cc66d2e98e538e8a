package bench

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/kafka"
	"github.com/weirflow/weir/internal/testing/storebench"
)

// fakeKafka is an engine with the topics "in" and "out". It is a Kafka in memory, without a disk and replicas.
type fakeKafka struct {
	cluster *kfake.Cluster
	engines []*kafka.Engine
}

func startKafka() (engine, error) { return fakeCluster() }

func fakeCluster() (*fakeKafka, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(orderKeys, "in", "out"),
		kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &fakeKafka{cluster: cluster}, nil
}

func (e *fakeKafka) seed() kgo.Opt { return kgo.SeedBrokers(e.cluster.ListenAddrs()...) }

func (e *fakeKafka) fill(ctx context.Context, n int) error {
	client, err := kgo.NewClient(e.seed(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed firstError
	for i := range n {
		r := &kgo.Record{Topic: "in", Partition: int32(keyOf(i)), Key: strconv.AppendInt(nil, int64(keyOf(i)), 10), Value: numbered(i)}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.set(err)
			}
		})
	}
	return errors.Join(client.Flush(ctx), failed.err)
}

// bare implements engine: poll, produce what has come, commit.
func (e *fakeKafka) bare(ctx context.Context, n int) error {
	client, err := kgo.NewClient(e.seed(), kgo.ConsumerGroup("workers"), kgo.ConsumeTopics("in"), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer client.Close()
	for left := n; left > 0; {
		fetches := client.PollRecords(ctx, storebench.Batch)
		if err := fetches.Err(); err != nil {
			return err
		}
		records := fetches.Records()
		out := make([]*kgo.Record, len(records))
		for i, r := range records {
			out[i] = &kgo.Record{Topic: "out", Key: r.Key, Value: r.Value}
		}
		if err := client.ProduceSync(ctx, out...).FirstErr(); err != nil {
			return err
		}
		if err := client.CommitRecords(ctx, records...); err != nil {
			return err
		}
		left -= len(records)
	}
	return nil
}

func (e *fakeKafka) open(ctx context.Context) (delivery.Source[[]byte], delivery.Sink[[]byte], error) {
	in, err := e.queue(ctx)
	if err != nil {
		return nil, nil, err
	}
	return in, delivery.NewQueue[[]byte](in.Engine(), "out", delivery.WithCodec(storebench.Raw)), nil
}

// queue opens the engine, and returns the queue of the topic "in".
func (e *fakeKafka) queue(ctx context.Context, opts ...kgo.Opt) (*delivery.Queue[[]byte], error) {
	engine, err := kafka.Open(ctx, strings.Join(e.cluster.ListenAddrs(), ","), kafka.WithForeign("workers", "in"), kafka.WithTopics(1, 1),
		kafka.WithClient(opts...))
	if err != nil {
		return nil, err
	}
	e.engines = append(e.engines, engine)
	return delivery.NewQueue[[]byte](engine, "workers", delivery.WithCodec(storebench.Raw), delivery.WithLogger(slog.New(slog.DiscardHandler))), nil
}

func (e *fakeKafka) moved(ctx context.Context, n int, f func(payload []byte)) error {
	client, err := kgo.NewClient(e.seed(), kgo.ConsumeTopics("out"))
	if err != nil {
		return err
	}
	defer client.Close()
	has := 0
	for p := range int32(orderKeys) {
		has += int(e.cluster.PartitionInfo("out", p).HighWatermark)
	}
	for read := 0; read < has; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			f(r.Value)
		})
	}
	return nil
}

func (e *fakeKafka) close() error {
	for _, engine := range e.engines {
		_ = engine.Close() // a worker whose connection was cut cannot say farewell
	}
	e.cluster.Close()
	return nil
}
