package embedded_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/fleettest"
	"github.com/weirflow/weir/internal/testing/pipelinekill"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/internal/testing/workerkill"
	"github.com/weirflow/weir/message"
)

// The tests with kills run servers and workers in processes of their own.
func TestMain(m *testing.M) {
	clustertest.Child()
	workerkill.Child(openAny)
	pipelinekill.Child(openPipelines)
	fleettest.Child(openForFleet)
	suite.SetParallel(8, 8)
	// A publisher of the client that is cleaned up before its goroutine has begun leaves
	// that behind, waiting on a nil channel (v1.55.0).
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

// startCluster starts servers in processes of their own, which end with the test.
func startCluster(t *testing.T, c clustertest.Config) (*clustertest.Cluster, jetstream.JetStream) {
	t.Helper()
	c.Dir = t.TempDir()
	all, err := clustertest.Start(c)
	require.NoError(t, err)
	t.Cleanup(all.Close)
	js, err := clustertest.Connect(all.URL())
	require.NoError(t, err)
	t.Cleanup(js.Conn().Close)
	return all, js
}

// queues are a stream of orders, a stream of completed orders, and an engine for the
// layers and dead letters.
type queues struct {
	*weirjs.Engine
	js jetstream.JetStream
}

// makeQueues makes the streams, with a replica on each server.
func makeQueues(t *testing.T, js jetstream.JetStream, replicas int) {
	t.Helper()
	store := weirjs.StreamConfig("queues")
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "work", Subjects: []string{"work"}, Retention: jetstream.WorkQueuePolicy},
		{Name: "done", Subjects: []string{"done"}, Duplicates: time.Hour},
		store,
	} {
		cfg.Replicas = replicas
		require.NoError(t, clustertest.CreateStream(t.Context(), js, cfg))
	}
	_, err := child.Again(t.Context(), func(ctx context.Context) (jetstream.Consumer, error) {
		return js.CreateOrUpdateConsumer(ctx, "work", jetstream.ConsumerConfig{
			Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: workerkill.Lease, MaxAckPending: 1000,
		})
	})
	require.NoError(t, err)
}

func openQueues(ctx context.Context, url string) (workerkill.Engine, error) {
	js, err := clustertest.Connect(url, nats.IgnoreDiscoveredServers()) // or it would go past a proxy
	if err != nil {
		return nil, err
	}
	s, err := openEngine(ctx, js, "queues")
	if err != nil {
		js.Conn().Close()
		return nil, err
	}
	return &queues{s, js}, nil
}

// Source implements [workerkill.Engine].
func (q *queues) Source(context.Context) (delivery.Source[workerkill.Order], error) {
	return weirjs.NewSource(q.js, codec.JSON[workerkill.Order](), weirjs.SourceConfig{
		Stream: "work", Consumer: "workers", NoConsumer: true, DeadLetters: q.Engine, DeadLetterQueue: workerkill.Dead,
	}), nil
}

func (q *queues) Sink() delivery.Sink[workerkill.Order] { return q.sink("done") }

func (q *queues) sink(stream string) *weirjs.Sink[workerkill.Order] {
	return weirjs.NewSink(q.js, codec.JSON[workerkill.Order](), weirjs.SinkConfig{Stream: stream})
}

func (q *queues) Fill(ctx context.Context, orders []workerkill.Order) error {
	var ms []message.Message[workerkill.Order]
	for _, o := range orders {
		meta := o.Meta()
		ms = append(ms, message.New(o, &meta, nil))
	}
	sink := q.sink("work")
	_, err := child.Again(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, sink.PutAll(ctx, ms) }) // the leader may have no room
	return err
}

func (q *queues) ids(ctx context.Context, name string) (ids []string, err error) {
	stream, err := q.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	for next := uint64(1); ; {
		m, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(name))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return ids, nil
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, m.Header.Get("Weir-Id"))
		next = m.Sequence + 1
	}
}

func (q *queues) Left(ctx context.Context) ([]string, error) { // messages released with a delay wait in the engine's stream
	ids, err := q.ids(ctx, "work")
	if err != nil {
		return nil, err
	}
	rest, err := workerkill.Queues{Inspector: q.Engine}.Left(ctx)
	return append(ids, rest...), err
}

func (q *queues) Finished(ctx context.Context) ([]string, error) { return q.ids(ctx, "done") }

func (q *queues) CountFinished(ctx context.Context) (int, error) {
	s, err := q.js.Stream(ctx, "done")
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

func (q *queues) Close() error {
	defer q.js.Conn().Close()
	return q.Engine.Close()
}

// own are queues in the engine's stream.
type own struct {
	inspected
	conn *nats.Conn
}

type inspected = workerkill.Queues // which has a method of that name

const ownPrefix = "own " // of the place

func openOwn(ctx context.Context, place string) (workerkill.Engine, error) {
	js, err := clustertest.Connect(strings.TrimPrefix(place, ownPrefix))
	if err != nil {
		return nil, err
	}
	s, err := openEngine(ctx, js, "queues")
	if err != nil {
		js.Conn().Close()
		return nil, err
	}
	return &own{workerkill.Queues{Inspector: s}, js.Conn()}, nil
}

func (o *own) Close() error {
	defer o.conn.Close()
	return o.inspected.Close()
}

func openAny(ctx context.Context, place string) (workerkill.Engine, error) {
	if strings.HasPrefix(place, ownPrefix) {
		return openOwn(ctx, place)
	}
	return openQueues(ctx, place)
}

// killer returns a function that kills the leader of a stream, and starts it again. Each
// call takes the next stream.
func killer(t *testing.T, c *clustertest.Cluster, js jetstream.JetStream, streams ...string) func() {
	t.Helper()
	n := 0
	return func() {
		i, err := c.Leader(t.Context(), js, streams[n%len(streams)])
		require.NoError(t, err)
		require.NoError(t, c.Kill(i))
		require.NoError(t, c.Restart(i))
		n++
	}
}

func forClusters(t *testing.T, f func(t *testing.T, servers int)) {
	sizes := []int{3}
	if suite.Long() {
		sizes = []int{1, 3}
	}
	for _, n := range sizes {
		t.Run("servers="+strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			f(t, n)
		})
	}
}

// fewer is the number of messages for tests that disturb one server: they need fewer than
// the others.
const fewer = 1000

// Each order is done once, or is a dead letter once, although workers and servers are
// killed (laws D1 to D4).
func TestKilledWorkersAndServers(t *testing.T) {
	t.Parallel()
	forClusters(t, func(t *testing.T, servers int) {
		c, js := startCluster(t, clustertest.Config{Servers: servers})
		makeQueues(t, js, servers)
		workerkill.Run(t, workerkill.Config{DSN: c.URL(), Open: openQueues, KillServer: killer(t, c, js, "work", "queues", "done")})
	})
}

// The same where all is in the stream of the engine.
func TestKilledWorkersAndServersOnOneStream(t *testing.T) {
	t.Parallel()
	forClusters(t, func(t *testing.T, servers int) {
		c, js := startCluster(t, clustertest.Config{Servers: servers})
		cfg := weirjs.StreamConfig("queues")
		cfg.Replicas = servers
		require.NoError(t, clustertest.CreateStream(t.Context(), js, cfg))
		workerkill.Run(t, workerkill.Config{DSN: ownPrefix + c.URL(), Open: openOwn, KillServer: killer(t, c, js, "queues"), Messages: fewer})
	})
}

// A server whose disk is full may block the streams that it leads, but loses no message
// (laws D1, D5). They continue at the latest when it returns, here with an empty
// directory and room.
func TestCluster_FullDiskOfOneServer(t *testing.T) {
	t.Parallel()
	const room, full = 8 << 20, 1
	c, err := clustertest.Start(clustertest.Config{Dir: t.TempDir(), Servers: 3, Disks: map[int]int64{full: room}})
	if err != nil && strings.Contains(err.Error(), "a disk of") {
		t.Skip("a process may not mount a disk here: ", err)
	}
	require.NoError(t, err)
	defer c.Close()
	js, err := clustertest.Connect(c.URL())
	require.NoError(t, err)
	defer js.Conn().Close()
	makeQueues(t, js, 3)
	require.NoError(t, clustertest.CreateStream(t.Context(), js, jetstream.StreamConfig{Name: "ballast", Subjects: []string{"ballast"}, Replicas: 3}))
	ctx, stored := bounded(t), 0
	for payload := make([]byte, room/16); stored < 2*room; { // more than it has room for
		within, cancel := context.WithTimeout(ctx, time.Second)
		if _, err := js.Publish(within, "ballast", payload); err == nil {
			stored += len(payload)
		}
		cancel()
		require.NoError(t, ctx.Err(), c.Log(full))
	}
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	require.Error(t, c.Synced(within, js, "ballast"), "one has no room for it")
	place, repaired := c.URL(), make(chan struct{})
	time.AfterFunc(5*time.Second, func() { // as an operator would
		defer close(repaired)
		err = c.Kill(full)
		c.Enlarge(full)
		err = errors.Join(err, c.Restart(full))
	})
	defer func() { <-repaired }() // the cluster's methods are called one at a time
	workerkill.Run(t, workerkill.Config{DSN: place, Open: openQueues, Messages: fewer})
	<-repaired
	require.NoError(t, err)
	require.NoError(t, c.Synced(bounded(t), js, "done"))
}

// A server that pauses again and again, for example because its disk is slow, costs only
// time.
func TestCluster_SlowServer(t *testing.T) {
	t.Parallel()
	c, js := startCluster(t, clustertest.Config{Servers: 3})
	makeQueues(t, js, 3)
	workerkill.Run(t, workerkill.Config{
		DSN: c.URL(), Open: openQueues, Messages: fewer,
		KillServer: func() {
			i, err := c.Leader(t.Context(), js, "work")
			require.NoError(t, err)
			for n := range 6 {
				d := 300 * time.Millisecond
				if n == 5 && suite.Long() {
					d = 12 * time.Second // long enough for the others to elect a leader
				}
				done, err := c.Pause(i, d)
				require.NoError(t, err)
				if !done {
					t.Skip("processes cannot be stopped here")
				}
				time.Sleep(100 * time.Millisecond)
			}
		},
	})
}

// Workers that are cut off from the servers, and connections that break within an answer,
// cost only time.
func TestCutOffByAProxy(t *testing.T) {
	t.Parallel()
	c, js := startCluster(t, clustertest.Config{Servers: 3})
	makeQueues(t, js, 3)
	proxies, url := startProxies(t, c.URL())
	all := func(f func(p *proxy)) {
		for _, p := range proxies {
			f(p)
		}
	}
	workerkill.Run(t, workerkill.Config{
		DSN: url, Open: openQueues, Messages: fewer, MayLapse: true, // deliveries that a cut has swallowed count
		KillServer: func() {
			for range 3 {
				all((*proxy).hold) // as if packets were dropped
				time.Sleep(500 * time.Millisecond)
				all((*proxy).close)
				all((*proxy).heal)
				time.Sleep(100 * time.Millisecond)
			}
		},
	})
}

func openPipelines(ctx context.Context, url string) (e pipelinekill.Engine, err error) {
	js, err := clustertest.Connect(url)
	if err != nil {
		return e, err
	}
	engine, err := openEngine(ctx, js, "locks")
	if err != nil {
		js.Conn().Close()
		return e, err
	}
	return pipelinekill.Engine{
		Locks: engine.Locks(), Stores: jscheckpoint.Stores(js, "checkpoints", "copy"),
		Input: func(p string) checkpoint.Input[int] {
			return jscheckpoint.NewInput(js, "in-"+p, codec.JSON[int](), jscheckpoint.InputConfig{End: true})
		},
		Output: func(p string) checkpoint.Output[int] {
			return jscheckpoint.NewOutput(js, "out-"+p, "out-"+p, codec.JSON[int]())
		},
		Close: func() {
			_ = engine.Close() // even if it fails, its locks expire
			js.Conn().Close()
		},
	}, nil
}

// The output is exactly once and in order, although workers are killed, or stopped for
// longer than their leases, and servers are killed (laws C1, P1).
func TestKilledPipelines(t *testing.T) {
	t.Parallel()
	forClusters(t, func(t *testing.T, servers int) {
		c, js := startCluster(t, clustertest.Config{Servers: servers})
		checkpoints := jscheckpoint.StreamConfig("checkpoints")
		checkpoints.Replicas = servers
		require.NoError(t, clustertest.CreateStream(t.Context(), js, checkpoints))
		locks := weirjs.StreamConfig("locks")
		locks.Replicas = servers
		require.NoError(t, clustertest.CreateStream(t.Context(), js, locks))
		elements := make([]string, pipelinekill.Elements())
		for i := range elements {
			elements[i] = strconv.Itoa(i)
		}
		leaders := []string{"checkpoints", "locks"}
		for _, p := range pipelinekill.Partitions() {
			for _, name := range []string{"in-" + p, "out-" + p} {
				require.NoError(t, clustertest.CreateStream(t.Context(), js, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: servers}))
				leaders = append(leaders, name)
			}
			publishRaw(t, js, "in-"+p, elements...)
		}
		pipelinekill.Run(t, pipelinekill.Config{
			DSN: c.URL(),
			Count: func(ctx context.Context) (n int, err error) {
				for _, p := range pipelinekill.Partitions() {
					s, err := js.Stream(ctx, "out-"+p)
					if err != nil {
						return 0, err
					}
					n += int(s.CachedInfo().State.Msgs)
				}
				return n, nil
			},
			Rows:       func(_ context.Context, p string) ([]int, error) { return values[int](js, "out-"+p) },
			KillServer: killer(t, c, js, leaders...),
		})
	})
}
