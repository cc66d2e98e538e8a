package docs_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/ext/jetstream/jsqueue"
	"github.com/weirflow/weir/ext/jetstream/jsstore"
	"github.com/weirflow/weir/partitions"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// makeStreams makes what the workers need, once.
func makeStreams(ctx context.Context, js jetstream.JetStream) error {
	for _, stream := range []jetstream.StreamConfig{
		{Name: "sales", Subjects: []string{"sales"}, Retention: jetstream.WorkQueuePolicy},
		{Name: "receipts", Subjects: []string{"receipts"}, Duplicates: time.Hour},
		jsstore.StreamConfig("retries"),
	} {
		if _, err := js.CreateOrUpdateStream(ctx, stream); err != nil {
			return err
		}
	}
	_, err := js.CreateOrUpdateConsumer(ctx, "sales", jetstream.ConsumerConfig{
		Durable: "tills", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 1000,
	})
	return err
}

// till sells until ctx ends.
func till(ctx context.Context, js jetstream.JetStream, sell asyncop.AsyncFunction[sale, receipt]) error {
	queues, err := jsstore.Open(ctx, js, "retries")
	if err != nil {
		return err
	}
	defer queues.Close()
	again := delivery.NewQueue[sale](queues, "sales", delivery.RetryAfter(20*time.Millisecond))
	consumer, err := js.Consumer(ctx, "sales", "tills")
	if err != nil {
		return err
	}
	sales, err := jsqueue.NewSource(ctx, js, consumer, codec.JSON[sale](), jsqueue.WithDeadLetters(queues, again.DeadLetters()))
	if err != nil {
		return err
	}
	source := again.Source(sales)
	sink := jsqueue.NewSink(js, "receipts", codec.JSON[receipt]())

	strategy := strategies.PolicyOf(strategies.FixedDelay[receipt](2, time.Millisecond).
		RetryIfException(predicates.HasException)).
		Idempotent() // a sale may be sent twice: the bank knows its id
	op := asyncop.UnorderedWaitWithRetry(sell, 10*time.Second, 100, strategy,
		asyncop.WithFailureSink(again.TakeFailure))
	_, err = delivery.Run(ctx, source, op, sink)
	return err
}

func Example_jetStream() {
	dir, err := os.MkdirTemp("", "jetstream")
	check(err)
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())

	server, err := embedded.Start(dir)
	check(err)
	defer server.Close()
	nc, err := server.Connect() // of a cluster: nats.Connect(urls, nats.UserCredentials(file))
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)

	check(makeStreams(ctx, js))
	for _, s := range []sale{{"sale-1", 100}, {"sale-2", 200}} {
		check(jsqueue.NewSink(js, "sales", codec.JSON[sale]()).PutAll(ctx,
			[]delivery.Message[sale]{delivery.New(s, &delivery.Meta{ID: s.ID}, nil)}))
	}
	busy := 3 // times, for the second sale
	sell := asyncop.Blocking(func(_ context.Context, s sale) (receipt, error) {
		if s.ID == "sale-2" && busy > 0 {
			busy--
			return "", errBusy
		}
		fmt.Println("sold", s.ID)
		return receipt(s.ID), nil
	})
	done := make(chan error)
	go func() { done <- till(ctx, js, sell) }()
	in := jscheckpoint.NewInput(js, "receipts", codec.JSON[receipt]())
	defer in.Close()
	receipts := []receipt{must(in.Next()), must(in.Next())}
	stop()
	fmt.Println(receipts, <-done)
	// Output:
	// sold sale-1
	// sold sale-2
	// [sale-1 sale-2] <nil>
}

// copyShards runs a pipeline with checkpoints for each shard, until ctx ends.
func copyShards(ctx context.Context, js jetstream.JetStream, shards []string) error {
	kv, err := js.KeyValue(ctx, "locks")
	if err != nil {
		return err
	}
	return partitions.Run(ctx, partitions.Config{
		Assigner:    &partitions.Leases{Locks: jsstore.NewLocks(kv), Group: "copy", Partitions: shards},
		Stores:      jscheckpoint.Stores(js, "checkpoints", "copy"),
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(time.Second)},
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			input := jscheckpoint.NewInput(js, p.Name, codec.JSON[string]())
			output := jscheckpoint.NewOutput(js, p.Name+"-upper", p.Name+"-upper", codec.JSON[string]())
			source := checkpoint.NewSource(p.Coordinator, "in", checkpoint.Input[string](input))
			op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithName("upper"),
				asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx))
			sink := checkpoint.NewSink(p.Coordinator, "out", checkpoint.Output[string](output))
			if err := p.Coordinator.Start(); err != nil {
				return err
			}
			source.Via(op).To(sink)
			return p.Coordinator.Wait()
		},
	})
}

func Example_jetStreamWithCheckpoints() {
	dir, err := os.MkdirTemp("", "jetstream")
	check(err)
	defer os.RemoveAll(dir)
	server, err := embedded.Start(dir)
	check(err)
	defer server.Close()
	nc, err := server.Connect()
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)
	ctx, stop := context.WithCancel(context.Background())

	_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "locks"})
	check(err)
	for _, stream := range []jetstream.StreamConfig{
		{Name: "shard", Subjects: []string{"shard"}},
		{Name: "shard-upper", Subjects: []string{"shard-upper"}},
		jscheckpoint.StreamConfig("checkpoints"),
	} {
		_, err := js.CreateOrUpdateStream(ctx, stream)
		check(err)
	}
	check(jsqueue.NewSink(js, "shard", codec.JSON[string]()).PutAll(ctx,
		[]delivery.Message[string]{delivery.New("a", nil, nil), delivery.New("b", nil, nil)}))

	done := make(chan error)
	go func() { done <- copyShards(ctx, js, []string{"shard"}) }()
	out := jscheckpoint.NewInput(js, "shard-upper", codec.JSON[string]())
	defer out.Close()
	for range 2 {
		fmt.Println(must(out.Next()))
	}
	stop()
	fmt.Println(<-done)
	// Output:
	// <a>
	// <b>
	// <nil>
}
