package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/message"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/storebench"
)

type jetStream struct {
	js       jetstream.JetStream
	replicas int
	dir      string
	server   *embedded.Server     // in this process, or nil
	cluster  *clustertest.Cluster // or nil
}

func startEmbedded() (engine, error) { return embeddedServer() }

func embeddedServer() (*jetStream, error) {
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	e := &jetStream{replicas: 1, dir: dir}
	return e.begin(e.start())
}

func (e *jetStream) start() (err error) {
	e.server, err = embedded.Start(e.dir, embedded.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	e.js, err = e.connect()
	return err
}

func (e *jetStream) connect() (jetstream.JetStream, error) {
	nc, err := e.server.Connect()
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

func (e *jetStream) restart() error {
	e.js.Conn().Close()
	if err := e.server.Close(); err != nil {
		return err
	}
	return e.start()
}

// startCluster starts three servers in separate processes. They sync each write.
func startCluster() (engine, error) { return clusterOfThree() }

func clusterOfThree() (*jetStream, error) {
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	e := &jetStream{replicas: 3, dir: dir}
	e.cluster, err = clustertest.Start(clustertest.Config{Dir: dir, Servers: 3})
	if err == nil {
		e.js, err = clustertest.Connect(e.cluster.URL())
	}
	return e.begin(err)
}

// begin creates the streams once the servers have found each other.
func (e *jetStream) begin(err error) (*jetStream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range []string{"in", "out"} {
		if err == nil {
			err = clustertest.CreateStream(ctx, e.js, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: e.replicas})
		}
	}
	if err == nil {
		_, err = child.Again(ctx, e.consumer)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

const ackWait = 30 * time.Second

func (e *jetStream) consumer(ctx context.Context) (jetstream.Consumer, error) {
	return e.js.CreateOrUpdateConsumer(ctx, "in", jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 10_000,
	})
}

func (e *jetStream) publish(ctx context.Context, ms []*nats.Msg) error {
	futures := make([]jetstream.PubAckFuture, len(ms))
	for i, m := range ms {
		var err error
		futures[i], err = e.js.PublishMsgAsync(m, jetstream.WithStallWait(10*time.Second))
		if err != nil {
			return err
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (e *jetStream) fill(ctx context.Context, n int) error {
	for i := 0; i < n; {
		var ms []*nats.Msg
		for ; i < n && len(ms) < 200; i++ {
			ms = append(ms, &nats.Msg{Subject: "in", Data: numbered(i)})
		}
		if err := e.publish(ctx, ms); err != nil {
			return err
		}
	}
	return nil
}

// bareWorkers is the number of workers of a bare row. More are not faster on two cores.
const bareWorkers = 4

// bare implements engine. Like weir's source it waits for the answers to
// acknowledgements: a message without one may be redelivered.
func (e *jetStream) bare(ctx context.Context, n int) error {
	consumer, err := e.consumer(ctx)
	if err != nil {
		return err
	}
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, bareWorkers)
	var wg sync.WaitGroup
	for w := range bareWorkers {
		wg.Go(func() {
			for errs[w] == nil && left.Load() > 0 {
				var moved int
				moved, errs[w] = e.moveBatch(ctx, consumer)
				left.Add(-int64(moved))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (e *jetStream) moveBatch(ctx context.Context, consumer jetstream.Consumer) (int, error) {
	batch, err := consumer.FetchNoWait(storebench.Batch)
	if err != nil {
		return 0, err
	}
	var taken []jetstream.Msg
	var ms []*nats.Msg
	for m := range batch.Messages() {
		at, err := m.Metadata()
		if err != nil {
			return 0, err
		}
		taken = append(taken, m)
		ms = append(ms, &nats.Msg{
			Subject: "out", Data: m.Data(), Header: nats.Header{nats.MsgIdHdr: {"in-" + strconv.FormatUint(at.Sequence.Stream, 10)}},
		})
	}
	if err := errors.Join(batch.Error(), e.publish(ctx, ms)); err != nil {
		return 0, err
	}
	errs := make([]error, len(taken))
	var wg sync.WaitGroup
	for i, m := range taken {
		wg.Go(func() { errs[i] = m.DoubleAck(ctx) })
	}
	wg.Wait()
	return len(taken), errors.Join(errs...)
}

type ownQueues struct {
	*jetStream
	engine *weirjs.Engine
}

func own(start func() (*jetStream, error)) func() (engine, error) {
	return func() (engine, error) {
		e, err := start()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		o := &ownQueues{jetStream: e}
		o.engine, err = weirjs.New(ctx, e.js, weirjs.WithReplicas(e.replicas), weirjs.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return nil, errors.Join(err, e.close())
		}
		return o, nil
	}
}

func (o *ownQueues) queue(name string) *delivery.Queue[[]byte] {
	return delivery.NewQueue[[]byte](o.engine, name, delivery.WithCodec(storebench.Raw), delivery.WithLogger(slog.New(slog.DiscardHandler)))
}

func (o *ownQueues) fill(ctx context.Context, n int) error {
	for i := 0; i < n; {
		var ms []message.Message[[]byte]
		for ; i < n && len(ms) < storebench.Batch; i++ {
			ms = append(ms, message.New(numbered(i), &message.Meta{ID: strconv.Itoa(i)}, nil))
		}
		if err := o.queue("in").PutAll(ctx, ms); err != nil {
			return err
		}
	}
	return nil
}

func (o *ownQueues) open(context.Context) (delivery.Source[[]byte], delivery.Sink[[]byte], error) {
	return o.queue("in").Source(nil), o.queue("out"), nil
}

func (o *ownQueues) moved(ctx context.Context, n int, f func(payload []byte)) error {
	for came := 0; came < n; {
		ms, err := o.engine.Take(ctx, "out", n-came, time.Hour)
		if err != nil {
			return err
		}
		for _, m := range ms {
			f(m.Payload)
		}
		came += len(ms)
		if len(ms) == 0 {
			return fmt.Errorf("%d of %d messages came out", came, n)
		}
	}
	return nil
}

func (o *ownQueues) close() error { return errors.Join(o.engine.Close(), o.jetStream.close()) }

func (e *jetStream) open(ctx context.Context) (delivery.Source[[]byte], delivery.Sink[[]byte], error) {
	if _, err := e.consumer(ctx); err != nil {
		return nil, nil, err
	}
	return sourceOn(e.js), weirjs.NewSink(e.js, storebench.Raw, weirjs.SinkConfig{Stream: "out"}), nil
}

// sourceOn returns a source of the stream "in" with dead letters in memory.
func sourceOn(js jetstream.JetStream) delivery.Source[[]byte] {
	return weirjs.NewSource(js, storebench.Raw, weirjs.SourceConfig{
		Stream: "in", Consumer: "workers", DeadLetters: memory.Open(), DeadLetterQueue: "in-dead", Logger: slog.New(slog.DiscardHandler),
	})
}

func (e *jetStream) moved(ctx context.Context, n int, f func(payload []byte)) error {
	s, err := e.js.Stream(ctx, "out")
	if err != nil {
		return err
	}
	if err := has(s, n); err != nil {
		return err
	}
	consumer, err := e.js.OrderedConsumer(ctx, "out", jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range n {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		f(m.Data())
	}
	return nil
}

func (e *jetStream) close() error {
	if e.js != nil {
		e.js.Conn().Close()
	}
	var err error
	if e.server != nil {
		err = e.server.Close()
	}
	if e.cluster != nil {
		e.cluster.Close()
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}
