package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/message"
	weirpartitions "github.com/weirflow/weir/partitions"
)

// Metrics of W15.
const (
	TakeoverMs = "takeover-ms" // from a worker's death to the first message of its share at another worker
	AllMs      = "all-ms"      // … to the last message
	LeaseMs    = "lease-ms"    // the setting that bounds the takeover: lease or session timeout
)

// w15 measures the time until others take over the share of a worker whose connections
// break.
func w15(c Config) []Group {
	lease := 5 * time.Second
	if c.Short {
		lease = 2 * time.Second // on a busy machine, shorter ones expire for live workers
	}
	row := func(impl string, run func(ctx context.Context, m *Meter, n int, lease time.Duration) error) Row {
		return Row{Impl: impl, Kind: Weir, Run: func(m *Meter, n int) error {
			ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
			defer cancel()
			m.Report(LeaseMs, float64(lease.Milliseconds()))
			return run(ctx, m, n, lease)
		}}
	}
	return []Group{{
		Workload: "W15", Elems: c.elems(1000, 40), Key: TakeoverMs,
		Title: "one of two workers dies: the first message of its share elsewhere; leases of " + lease.String(),
		Rows: []Row{
			row("jetstream-consumer", dieOnJetStream),
			row("jetstream-partitions", dieWithPartitions),
			row("kfake-group", dieOnKafka),
		},
		Aims: []Aim{
			{Impl: "jetstream-consumer", Max: 1.2 * float64(lease.Milliseconds())},
			{Impl: "jetstream-partitions", Max: 1.5 * float64(lease.Milliseconds())},
			{Impl: "kfake-group", Max: 1.5 * float64(lease.Milliseconds())},
		},
	}}
}

// share tracks the messages that the dying worker has taken.
type share struct {
	mu    sync.Mutex
	of    map[int]bool // not received by another worker yet
	begun time.Time
	first time.Duration
}

func (s *share) add(ms []message.Message[[]byte]) error {
	for _, m := range ms {
		i, err := numberOf(m.Value)
		if err != nil {
			return err
		}
		s.of[i] = true
	}
	return nil
}

func (s *share) took(i int) {
	if s.of[i] && s.first == 0 {
		s.first = time.Since(s.begun)
	}
	delete(s.of, i)
}

func (s *share) report(m *Meter) {
	m.Report(TakeoverMs, float64(s.first.Microseconds())/1000)
	m.Report(AllMs, float64(time.Since(s.begun).Microseconds())/1000)
}

// inherit lets a worker receive all messages of the dead one. Messages that the heir
// acknowledged before may be redelivered: on a busy machine the heir may have counted as
// dead, too.
func (s *share) inherit(ctx context.Context, m *Meter, heir delivery.Source[[]byte]) error {
	for len(s.of) > 0 {
		ms, err := heir.Receive(ctx, 100)
		if err != nil {
			return err
		}
		for _, got := range ms {
			i, err := numberOf(got.Value)
			if err != nil {
				return err
			}
			s.took(i)
			got.Ack()
		}
	}
	m.Stop()
	s.report(m)
	return nil
}

// dieOnJetStream has workers on one consumer.
func dieOnJetStream(ctx context.Context, m *Meter, n int, lease time.Duration) (err error) {
	e, err := embeddedServer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.fill(ctx, n); err != nil {
		return err
	}
	_, err = e.js.CreateOrUpdateConsumer(ctx, "in", jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: lease, MaxAckPending: 10_000,
	})
	if err != nil {
		return err
	}
	mortal, err := e.connect()
	if err != nil {
		return err
	}
	dying := sourceOn(mortal)
	defer closeDead(dying)
	heir := sourceOn(e.js)
	defer func() { err = errors.Join(err, heir.Close(context.Background())) }()
	s := &share{of: map[int]bool{}}
	for len(s.of) < n/2 {
		ms, err := dying.Receive(ctx, n/2-len(s.of))
		if err := cmp.Or(err, s.add(ms)); err != nil {
			return err
		}
	}
	for done := 0; done < n-n/2; {
		ms, err := heir.Receive(ctx, 100)
		if err != nil {
			return err
		}
		for _, got := range ms {
			got.Ack()
		}
		done += len(ms)
	}
	m.Start()
	s.begun = time.Now()
	mortal.Conn().Close()
	return s.inherit(ctx, m, heir)
}

// closeDead ends a source's goroutines after its connection broke.
func closeDead(s delivery.Source[[]byte]) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.Close(ctx) // fails without a connection
}

// cut is a dialer whose connections can be cut for good.
type cut struct {
	mu    sync.Mutex
	conns []net.Conn
	done  bool
}

var errCut = errors.New("bench: the connection was cut")

func (c *cut) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil, errCut
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cut) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	for _, conn := range c.conns {
		_ = conn.Close() // only the cut matters
	}
}

func dieOnKafka(ctx context.Context, m *Meter, n int, lease time.Duration) (err error) {
	e, err := fakeCluster()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	open := func(dial func(ctx context.Context, network, address string) (net.Conn, error)) (*delivery.Queue[[]byte], error) {
		return e.queue(ctx, kgo.Dialer(dial), kgo.SessionTimeout(lease), kgo.HeartbeatInterval(lease/10), kgo.FetchMaxWait(100*time.Millisecond))
	}
	var line cut
	dying, err := open(line.dial)
	if err != nil {
		return err
	}
	defer closeDead(dying)
	heir, err := open((&net.Dialer{}).DialContext)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heir.Close(context.Background())) }()
	s := &share{of: map[int]bool{}}
	// Both receive. The heir acknowledges its messages.
	taking, enough := context.WithCancel(ctx)
	defer enough()
	var wg sync.WaitGroup
	var failed firstError
	left := n
	for _, w := range []*delivery.Queue[[]byte]{dying, heir} {
		wg.Go(func() {
			for {
				ms, err := w.Receive(taking, 100)
				if taking.Err() != nil {
					return
				}
				s.mu.Lock()
				if w == dying {
					err = cmp.Or(err, s.add(ms))
				}
				left -= len(ms)
				if left == 0 || err != nil {
					enough()
				}
				s.mu.Unlock()
				if err != nil {
					failed.set(err)
					return
				}
				if w == heir {
					for _, got := range ms {
						got.Ack()
					}
				}
			}
		})
	}
	err = e.members(ctx, 2) // they join with their first Receive
	if err == nil {
		err = e.fill(ctx, n)
	}
	if err != nil {
		enough()
	}
	wg.Wait()
	err = cmp.Or(err, failed.err)
	if err != nil || len(s.of) == 0 || len(s.of) == n {
		return cmp.Or(err, fmt.Errorf("the worker that is to die has %d of %d messages", len(s.of), n))
	}
	m.Start()
	s.begun = time.Now()
	line.cut()
	return s.inherit(ctx, m, heir)
}

func (e *kafkaEngine) members(ctx context.Context, n int) error {
	client, err := kgo.NewClient(e.seed())
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		groups, err := kadm.NewClient(client).DescribeGroups(ctx, "workers")
		if err != nil {
			return err
		}
		busy := 0
		for _, member := range groups["workers"].Members {
			if c, ok := member.Assigned.AsConsumer(); ok && len(c.Topics) > 0 {
				busy++
			}
		}
		if groups["workers"].State == "Stable" && busy == n {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// dieWithPartitions has workers with a pipeline for each partition, assigned by leases.
func dieWithPartitions(ctx context.Context, m *Meter, n int, lease time.Duration) (err error) {
	e, err := embeddedServer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	names, err := e.partitions(ctx)
	if err != nil {
		return err
	}
	mortal, err := e.connect()
	if err != nil {
		return err
	}
	w := &pipelines{owner: map[string]string{}, done: map[int]string{}}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		stop()
		wg.Wait()
	}()
	for name, js := range map[string]jetstream.JetStream{"dying": mortal, "heir": e.js} {
		config, err := w.config(ctx, name, js, names, lease)
		if err != nil {
			return err
		}
		wg.Go(func() {
			err := weirpartitions.Run(ctx, config)
			if name == "heir" && err != nil && ctx.Err() == nil {
				w.failed.set(err)
			}
		})
	}
	publish := func(from int) error {
		for i := range names {
			if _, err := e.js.Publish(ctx, names[i], numbered(from+i)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := publish(0); err != nil {
		return err
	}
	// Both have two partitions and a processed message in each.
	if err := w.until(ctx, func() bool { return w.has("dying") == 2 && w.has("heir") == 2 && len(w.done) == len(names) }); err != nil {
		return err
	}
	w.mu.Lock()
	owners := maps.Clone(w.owner)
	w.mu.Unlock()
	m.Start()
	begun := time.Now()
	mortal.Conn().Close()
	if err := publish(len(names)); err != nil {
		return err
	}
	first, err := w.takenOver(ctx, begun, names, owners)
	if err != nil {
		return err
	}
	m.Stop()
	m.Report(TakeoverMs, float64(first.Microseconds())/1000)
	m.Report(AllMs, float64(time.Since(begun).Microseconds())/1000)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.has("heir") != len(names) {
		return fmt.Errorf("the heir has %d of %d partitions", w.has("heir"), len(names))
	}
	return w.failed.err
}

func (e *jetStream) partitions(ctx context.Context) (names []string, err error) {
	for i := range 4 {
		names = append(names, "p"+strconv.Itoa(i))
		if _, err := e.js.CreateStream(ctx, jetstream.StreamConfig{Name: names[i], Subjects: []string{names[i]}}); err != nil {
			return nil, err
		}
	}
	_, err = e.js.CreateStream(ctx, jscheckpoint.StreamConfig("checkpoints"))
	return names, err
}

// pipelines records each partition's owner, and the worker that last processed each
// message.
type pipelines struct {
	mu     sync.Mutex
	owner  map[string]string
	done   map[int]string
	failed firstError
}

func (w *pipelines) has(worker string) int {
	return len(slices.DeleteFunc(slices.Collect(maps.Values(w.owner)), func(o string) bool { return o != worker }))
}

func (w *pipelines) config(
	ctx context.Context, worker string, js jetstream.JetStream, names []string, lease time.Duration,
) (weirpartitions.Config, error) {
	engine, err := weirjs.New(ctx, js, weirjs.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return weirpartitions.Config{}, err
	}
	return weirpartitions.Config{
		Assigner: &weirpartitions.Leases{
			Locks: engine.Locks(), Group: "bench", Partitions: names, Worker: worker, Lease: lease, Poll: lease / 10,
			Logger: slog.New(slog.DiscardHandler),
		},
		Stores: jscheckpoint.Stores(js, "checkpoints", "bench"), Checkpoints: []checkpoint.Option{
			checkpoint.WithInterval(lease / 5), checkpoint.WithLogger(slog.New(slog.DiscardHandler)),
		},
		Pipeline: func(ctx context.Context, p weirpartitions.Partition) error { return w.run(ctx, worker, js, p) },
		Logger:   slog.New(slog.DiscardHandler),
	}, nil
}

// takenOver waits until the heir has processed the second message of each partition of
// the dead worker. It returns the time from begun to the first.
func (w *pipelines) takenOver(
	ctx context.Context, begun time.Time, names []string, before map[string]string,
) (first time.Duration, err error) {
	err = w.until(ctx, func() bool {
		came := 0
		for i, name := range names {
			if before[name] == "dying" && w.done[len(names)+i] != "" {
				came++
			}
		}
		if came > 0 && first == 0 {
			first = time.Since(begun)
		}
		return came == 2
	})
	return first, err
}

// until polls a condition every millisecond.
func (w *pipelines) until(ctx context.Context, ok func() bool) error {
	for {
		w.mu.Lock()
		is := ok()
		w.mu.Unlock()
		switch {
		case is:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		time.Sleep(time.Millisecond)
	}
}

type nowhere struct{}

func (nowhere) Restore(context.Context, []byte) error   { return nil }
func (nowhere) Write(context.Context, []byte) error     { return nil }
func (nowhere) Prepare(context.Context) ([]byte, error) { return nil, nil }
func (nowhere) Commit(context.Context, []byte) error    { return nil }
func (nowhere) Close() error                            { return nil }

func (w *pipelines) run(ctx context.Context, worker string, js jetstream.JetStream, p weirpartitions.Partition) error {
	w.mu.Lock()
	w.owner[p.Name] = worker
	w.mu.Unlock()
	note := asyncop.Blocking(func(_ context.Context, payload []byte) ([]byte, error) {
		i, err := numberOf(payload)
		if err == nil {
			w.mu.Lock()
			w.done[i] = worker
			w.mu.Unlock()
		}
		return payload, err
	})
	input := jscheckpoint.NewInput(js, p.Name, storebench.Raw, jscheckpoint.InputConfig{})
	source := checkpoint.NewSource(p.Coordinator, "in", input)
	op := asyncop.OrderedWait(note, time.Minute, 100, asyncop.WithName("note"), asyncop.WithCheckpoints(p.Coordinator),
		asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	sink := checkpoint.NewSink(p.Coordinator, "out", checkpoint.Output[[]byte](nowhere{}))
	if err := p.Coordinator.Start(); err != nil {
		return err
	}
	source.Via(op).To(sink)
	return p.Coordinator.Wait()
}
