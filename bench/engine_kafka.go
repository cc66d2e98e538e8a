package bench

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/kafka"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/internal/testing/storebench"
)

type kafkaEngine struct {
	addrs   []string
	end     func()
	engines []*kafka.Engine
}

func startKafka() (engine, error) { return fakeCluster() }

func fakeCluster() (*kafkaEngine, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(orderKeys, "in", "out"),
		kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &kafkaEngine{addrs: cluster.ListenAddrs(), end: cluster.Close}, nil
}

// startBrokers starts three Apache Kafka brokers in separate processes, which all store
// each record.
func startBrokers() (engine, error) {
	cluster, err := clustertest.Start(3)
	if err != nil {
		return nil, err
	}
	e := &kafkaEngine{addrs: cluster.Addrs(), end: cluster.Close}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(e.seed())
	if err == nil {
		defer client.Close()
		var made kadm.CreateTopicResponses
		made, err = kadm.NewClient(client).CreateTopics(ctx, orderKeys, 3, nil, "in", "out")
		err = cmp.Or(err, made.Error())
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *kafkaEngine) seed() kgo.Opt { return kgo.SeedBrokers(e.addrs...) }

func (e *kafkaEngine) fill(ctx context.Context, n int) error {
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

// bare implements engine: poll, produce the records, commit.
func (e *kafkaEngine) bare(ctx context.Context, n int) error {
	client, err := kgo.NewClient(e.seed(), kgo.ConsumerGroup("workers"), kgo.ConsumeTopics("in"), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer client.Close()
	for left := n; left > 0; {
		fetches := client.PollFetches(ctx)
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

func (e *kafkaEngine) open(ctx context.Context) (delivery.Source[[]byte], delivery.Sink[[]byte], error) {
	in, err := e.queue(ctx)
	if err != nil {
		return nil, nil, err
	}
	return in, delivery.NewQueue[[]byte](in.Engine(), "out", delivery.WithCodec(storebench.Raw)), nil
}

// queue opens the engine and returns the queue of the topic "in".
func (e *kafkaEngine) queue(ctx context.Context, opts ...kgo.Opt) (*delivery.Queue[[]byte], error) {
	engine, err := kafka.Open(ctx, strings.Join(e.addrs, ","), kafka.WithTopics("workers", "in"), kafka.WithPartitions(1), kafka.WithReplicas(1), kafka.WithClientOptions(opts...))
	if err != nil {
		return nil, err
	}
	e.engines = append(e.engines, engine)
	return delivery.NewQueue[[]byte](engine, "workers", delivery.WithCodec(storebench.Raw), delivery.WithLogger(slog.New(slog.DiscardHandler))), nil
}

func (e *kafkaEngine) moved(ctx context.Context, n int, f func(payload []byte)) error {
	client, err := kgo.NewClient(e.seed(), kgo.ConsumeTopics("out"))
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, "out")
	err = cmp.Or(err, ends.Error())
	if err != nil {
		return err
	}
	has := 0
	ends.Each(func(o kadm.ListedOffset) { has += int(o.Offset) })
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

func (e *kafkaEngine) close() error {
	for _, engine := range e.engines {
		_ = engine.Close() // a cut connection makes it fail
	}
	e.end()
	return nil
}
