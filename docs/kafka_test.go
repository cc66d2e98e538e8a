package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/partitions"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var kafkaTopics = []string{"orders", "receipts"}

func bill(ctx context.Context, charge asyncop.AsyncFunction[string, string], strategy strategies.Retry[string], address string) error {
	engine, err := kafka.Open(ctx, address, // "kafka://broker-1:9092,broker-2:9092,broker-3:9092"
		kafka.WithPartitions(12), kafka.WithReplicas(3)) // partitions and replicas of topics that are missing
	if err != nil {
		return err
	}
	defer engine.Close()
	orders := delivery.NewQueue[string](engine, "orders", delivery.RetryAfter(50*time.Millisecond, 100*time.Millisecond))
	receipts := delivery.NewQueue[string](engine, "receipts")
	op := asyncop.UnorderedWaitWithRetry(charge, 10*time.Second, 1000, strategy, asyncop.WithFailureSink(orders.TakeFailure))
	_, err = delivery.Run(ctx, orders, op, receipts)
	return err
}

func billBeside(ctx context.Context, onKafka, onPostgres store.Engine, charge asyncop.AsyncFunction[string, string], strategy strategies.Retry[string],
	receipts delivery.Sink[string],
) error {
	topic := delivery.NewQueue[string](onKafka, "orders") // its dead letters are records that cannot be decoded
	orders := delivery.NewQueue[string](onPostgres, "orders", delivery.RetryAfter(time.Minute, time.Hour))
	op := asyncop.UnorderedWaitWithRetry(charge, 10*time.Second, 100, strategy, asyncop.WithFailureSink(orders.TakeFailure))
	_, err := delivery.Run(ctx, orders.Source(topic.Source(nil)), op, receipts)
	return err
}

// The topic is on kfake, and layers and dead letters are on an engine in memory.
func Example_kafkaBeside() {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders")))
	defer cluster.Close()
	onKafka := must(kafka.Open(context.Background(), strings.Join(cluster.ListenAddrs(), ","), kafka.WithPartitions(1), kafka.WithReplicas(1)))
	defer onKafka.Close()
	beside := memory.Open()
	orders := delivery.NewQueue[string](onKafka, "orders")
	check(orders.Put(context.Background(), "ann"))
	check(orders.Put(context.Background(), "eve"))

	charge := asyncop.Blocking(func(_ context.Context, name string) (string, error) {
		if name == "eve" {
			return "", predicates.WithReason(errors.New("no card"), predicates.NewRejection("NO_CARD"))
		}
		return "receipt for " + name, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for {
			done := must(beside.Count(context.Background(), "receipts", store.Filter{}))
			dead := must(beside.Count(context.Background(), "orders-dead", store.Filter{}))
			if done.Messages+dead.Messages == 2 {
				stop()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	check(billBeside(ctx, onKafka, beside, charge, strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent(),
		delivery.NewQueue[string](beside, "receipts")))
	for _, queue := range []string{"receipts", "orders-dead"} {
		for _, e := range must(beside.List(context.Background(), queue, store.Filter{}, store.Page{Max: 10})) {
			fmt.Printf("%s %s\n", queue, e.Payload)
		}
	}
	// Output:
	// receipts "receipt for ann"
	// orders-dead "eve"
}

func Example_kafkaQueue() {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(1, "orders", "receipts")))
	defer cluster.Close()
	brokers := cluster.ListenAddrs()
	orders := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("orders")))
	defer orders.Close()
	check(orders.ProduceSync(context.Background(), kgo.StringRecord(`"ann"`), kgo.StringRecord(`"bob"`)).FirstErr())

	charge := asyncop.Blocking(func(ctx context.Context, name string) (string, error) {
		if m, _ := message.MetaFromContext(ctx); name == "bob" && m.Visit < 3 {
			return "", errBusy
		}
		return "receipt for " + name, nil
	})
	strategy := strategies.PolicyOf(strategies.FixedDelay[string](1, time.Millisecond).
		RetryIfException(predicates.ErrorIs(errBusy))).Idempotent()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for _, r := range read(brokers, "receipts", 2) {
			fmt.Println(r)
		}
		stop()
	}()
	check(bill(ctx, charge, strategy, "kafka://"+strings.Join(brokers, ",")))
	// Output:
	// "receipt for ann"
	// "receipt for bob"
}

// read returns the first n records of a topic.
func read(brokers []string, topic string, n int) (values []string) {
	client := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted())))
	defer client.Close()
	for len(values) < n {
		for _, r := range client.PollFetches(context.Background()).Records() {
			values = append(values, string(r.Value))
		}
	}
	return values
}

func billOnce(ctx context.Context, coordinator *checkpoint.Coordinator, client ...kgo.Opt) error {
	input, err := kafka.OpenInput(ctx, kafka.InputConfig[string]{
		Client: client, Topic: "orders", Partition: 0, ToEnd: true,
		Decode: func(r *kgo.Record) (string, error) { return string(r.Value), nil },
	})
	if err != nil {
		return err
	}
	output, err := kafka.NewOutput(kafka.OutputConfig[string]{
		Client: client, Topic: "receipts", TransactionalID: "billing-0", // the same in each run
		Encode: func(v string) (*kgo.Record, error) { return kgo.StringRecord(v), nil },
	})
	if err != nil {
		return err
	}
	source := checkpoint.NewSource(coordinator, "orders", input)
	sink := checkpoint.NewSink(coordinator, "receipts", output)
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, name string) (string, error) {
		return "receipt for " + name, nil
	}), 5*time.Second, 100, asyncop.WithName("charge"), asyncop.WithCheckpoints(coordinator))
	if err := coordinator.Start(); err != nil {
		return err
	}
	source.Via(op).To(sink)
	return coordinator.Wait()
}

func billPartitions(ctx context.Context, stores partitions.Stores, client ...kgo.Opt) error {
	group := &kafka.Group{Client: client, Name: "billing", Topics: []string{"orders"}}
	return partitions.Run(ctx, partitions.Config{
		Assigner: group,
		Stores:   stores, // of PostgreSQL, JetStream or object storage
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			topic, partition, err := group.Partition(p.Name) // "orders/3"
			if err != nil {
				return err
			}
			input, err := kafka.OpenInput(ctx, kafka.InputConfig[string]{
				Client: client, Topic: topic, Partition: partition, Group: group, // the group's lag follows the checkpoints
				Decode: func(r *kgo.Record) (string, error) { return string(r.Value), nil },
			})
			if err != nil {
				return err
			}
			output, err := kafka.NewOutput(kafka.OutputConfig[string]{
				Client: client, Topic: "receipts", TransactionalID: "billing/" + p.Name,
				Encode: func(v string) (*kgo.Record, error) { return kgo.StringRecord(v), nil },
			})
			if err != nil {
				return errors.Join(err, input.Close())
			}
			source := checkpoint.NewSource(p.Coordinator, "orders", input)
			sink := checkpoint.NewSink(p.Coordinator, "receipts", output)
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, name string) (string, error) {
				return "receipt for " + name, nil
			}), 5*time.Second, 100, asyncop.WithName("charge"), asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx))
			if err := p.Coordinator.Start(); err != nil {
				return err
			}
			source.Via(op).To(sink)
			return p.Coordinator.Wait()
		},
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(100 * time.Millisecond)},
		Logger:      quiet,
	})
}

func Example_kafkaPartitions() {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, kafkaTopics...)))
	defer cluster.Close()
	client := kgo.SeedBrokers(cluster.ListenAddrs()...)
	orders := must(kgo.NewClient(client, kgo.DefaultProduceTopic("orders"), kgo.RecordPartitioner(kgo.ManualPartitioner())))
	defer orders.Close()
	check(orders.ProduceSync(context.Background(),
		&kgo.Record{Partition: 0, Value: []byte("ann")}, &kgo.Record{Partition: 1, Value: []byte("bob")}).FirstErr())

	dir := must(os.MkdirTemp("", "kafka"))
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { check(billPartitions(ctx, partitions.Dirs(dir), client)) })
	}
	for _, r := range read(cluster.ListenAddrs(), "receipts", 2) {
		fmt.Println(r)
	}
	cancel() // the workers suspend what they have, and leave the group
	workers.Wait()
	// Unordered output:
	// receipt for ann
	// receipt for bob
}

func Example_kafkaExactlyOnce() {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, kafkaTopics...)))
	defer cluster.Close()
	client := kgo.SeedBrokers(cluster.ListenAddrs()...)
	orders := must(kgo.NewClient(client, kgo.DefaultProduceTopic("orders")))
	defer orders.Close()
	check(orders.ProduceSync(context.Background(), kgo.StringRecord("ann"), kgo.StringRecord("bob")).FirstErr())

	dir := must(os.MkdirTemp("", "kafka"))
	defer os.RemoveAll(dir)
	store := must(files.OpenDir(dir))
	coordinator := must(checkpoint.NewCoordinator(store))
	check(billOnce(context.Background(), coordinator, client))
	check(coordinator.Close())
	for _, r := range read(cluster.ListenAddrs(), "receipts", 2) {
		fmt.Println(r)
	}
	// Output:
	// receipt for ann
	// receipt for bob
}
