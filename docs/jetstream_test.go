package docs_test

import (
	"context"
	"fmt"
	"os"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/partitions"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// till sells until ctx ends.
func till(ctx context.Context, engine store.Engine, sell asyncop.AsyncFunction[sale, receipt]) error {
	sales := delivery.NewQueue[sale](engine, "sales", delivery.RetryAfter(20*time.Millisecond))
	receipts := delivery.NewQueue[receipt](engine, "receipts")

	strategy := strategies.PolicyOf(strategies.FixedDelay[receipt](2, time.Millisecond).
		RetryIfException(predicates.HasException)).
		Idempotent() // a sale may be sent twice: the bank knows its id
	op := asyncop.UnorderedWaitWithRetry(sell, 10*time.Second, 100, strategy,
		asyncop.WithFailureSink(sales.TakeFailure))
	_, err := delivery.Run(ctx, sales, op, receipts)
	return err
}

// register sells what other programs have published, and publishes receipts for them,
// until ctx ends. The engine has the layers and dead letters.
func register(ctx context.Context, js natsjs.JetStream, engine *jetstream.Engine, sell asyncop.AsyncFunction[sale, receipt]) error {
	sales := delivery.NewQueue[sale](engine, "sales", delivery.RetryAfter(time.Minute))
	source := jetstream.NewSource(js, codec.JSON[sale](), jetstream.SourceConfig{
		Stream: "SALES", Consumer: "tills", DeadLetters: engine, DeadLetterQueue: sales.DeadLetters(),
	})
	receipts := jetstream.NewSink(js, codec.JSON[receipt](), jetstream.SinkConfig{
		Stream: "RECEIPTS", Subject: "receipts.new",
	})
	defer receipts.Close()
	op := asyncop.UnorderedWait(sell, 10*time.Second, 100, asyncop.WithFailureSink(sales.TakeFailure))
	_, err := delivery.Run(ctx, sales.Source(source), op, receipts)
	return err
}

func Example_jetStream() {
	dir, err := os.MkdirTemp("", "jetstream")
	check(err)
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())

	server, err := embedded.Start(dir, embedded.Config{})
	check(err)
	defer server.Close()
	engine, err := jetstream.Open(ctx, "", jetstream.WithNATSOptions(server.InProcess())) // of a cluster: its URLs
	check(err)
	defer engine.Close()
	sales := delivery.NewQueue[sale](engine, "sales")
	for _, s := range []sale{{"sale-1", 100}, {"sale-2", 200}} {
		check(sales.Put(ctx, s, delivery.ID(s.ID)))
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
	go func() { done <- till(ctx, engine, sell) }()
	source := delivery.NewQueue[receipt](engine, "receipts").Source(nil)
	for range 2 {
		for _, m := range must(source.Receive(ctx, 1)) {
			fmt.Println("receipt", m.Value)
			m.Ack()
		}
	}
	check(source.Close(ctx))
	stop()
	fmt.Println(<-done)
	// Unordered output:
	// sold sale-1
	// sold sale-2
	// receipt sale-1
	// receipt sale-2
	// <nil>
}

func Example_jetStreamOfOthers() {
	dir, err := os.MkdirTemp("", "jetstream")
	check(err)
	defer os.RemoveAll(dir)
	server, err := embedded.Start(dir, embedded.Config{})
	check(err)
	defer server.Close()
	ctx := context.Background()
	js := must(natsjs.New(must(server.Connect())))
	defer js.Conn().Close()
	for stream, subject := range map[string]string{"SALES": "sales.*", "RECEIPTS": "receipts.*"} {
		must(js.CreateStream(ctx, natsjs.StreamConfig{Name: stream, Subjects: []string{subject}}))
	}
	must(js.Publish(ctx, "sales.north", []byte(`{"ID":"sale-1","Cents":100}`))) // by any program

	engine := must(jetstream.New(ctx, js))
	defer engine.Close()
	working, stop := context.WithCancel(ctx)
	sell := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		meta, _ := message.MetaFromContext(ctx)
		fmt.Println(s.ID, meta.Headers["Nats-Subject"])
		return receipt(s.ID), nil
	})
	done := make(chan error)
	go func() { done <- register(working, js, engine, sell) }()
	receipts := must(js.OrderedConsumer(ctx, "RECEIPTS", natsjs.OrderedConsumerConfig{}))
	out := must(receipts.Next())
	fmt.Println(out.Subject(), string(out.Data()))
	stop()
	check(<-done)
	// Output:
	// sale-1 sales.north
	// receipts.new "sale-1"
}

// copyShards runs a pipeline with checkpoints for each shard, until ctx ends.
func copyShards(ctx context.Context, js natsjs.JetStream, shards []string) error {
	engine, err := jetstream.New(ctx, js)
	if err != nil {
		return err
	}
	defer engine.Close()
	return partitions.Run(ctx, partitions.Config{
		Assigner:    &partitions.Leases{Locks: engine.Locks(), Group: "copy", Partitions: shards},
		Stores:      jscheckpoint.Stores(js, "checkpoints", "copy"),
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(time.Second)},
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			input := jscheckpoint.NewInput(js, p.Name, codec.JSON[string](), jscheckpoint.InputConfig{})
			output := jscheckpoint.NewOutput(js, p.Name+"-upper", p.Name+"-upper", codec.JSON[string]())
			source := checkpoint.NewSource(p.Coordinator, "in", input)
			op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithName("upper"),
				asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx))
			sink := checkpoint.NewSink(p.Coordinator, "out", output)
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
	server, err := embedded.Start(dir, embedded.Config{})
	check(err)
	defer server.Close()
	nc, err := server.Connect()
	check(err)
	defer nc.Close()
	js, err := natsjs.New(nc)
	check(err)
	ctx, stop := context.WithCancel(context.Background())

	for _, stream := range []natsjs.StreamConfig{
		{Name: "shard", Subjects: []string{"shard"}},
		{Name: "shard-upper", Subjects: []string{"shard-upper"}},
		jscheckpoint.StreamConfig("checkpoints"),
	} {
		_, err := js.CreateOrUpdateStream(ctx, stream)
		check(err)
	}
	for _, v := range []string{`"a"`, `"b"`} {
		must(js.Publish(ctx, "shard", []byte(v)))
	}

	done := make(chan error)
	go func() { done <- copyShards(ctx, js, []string{"shard"}) }()
	out := jscheckpoint.NewInput(js, "shard-upper", codec.JSON[string](), jscheckpoint.InputConfig{})
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
