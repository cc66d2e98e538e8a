package embedded_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
)

// Rare faults of a cluster: here they happen each time.

// breaking is a server whose consumers break.
type breaking struct {
	jetstream.JetStream
	broken  atomic.Bool // consumers cannot be made
	failing atomic.Bool // iterators fail
	deaf    atomic.Bool // iterators miss a Stop during Next
	nexts   atomic.Int64
}

var errBroken = errors.New("the consumer is broken")

func (b *breaking) OrderedConsumer(ctx context.Context, stream string, c jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	if b.broken.Load() {
		return nil, errBroken
	}
	consumer, err := b.JetStream.OrderedConsumer(ctx, stream, c)
	return breakingConsumer{consumer, b}, err
}

type breakingConsumer struct {
	jetstream.Consumer
	breaking *breaking
}

func (c breakingConsumer) Messages(opts ...jetstream.PullMessagesOpt) (jetstream.MessagesContext, error) {
	m, err := c.Consumer.Messages(opts...)
	return breakingMessages{m, c.breaking}, err
}

type breakingMessages struct {
	jetstream.MessagesContext
	breaking *breaking
}

func (m breakingMessages) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	m.breaking.nexts.Add(1)
	defer m.breaking.nexts.Add(-1)
	msg, err := m.MessagesContext.Next(opts...)
	if m.breaking.failing.Load() {
		return nil, errBroken
	}
	return msg, err
}

func (m breakingMessages) Stop() {
	if !m.breaking.deaf.Load() || m.breaking.nexts.Load() == 0 {
		m.MessagesContext.Stop()
	}
}

func openStore(t *testing.T, js jetstream.JetStream, name string) *weirjs.Engine {
	t.Helper()
	s, err := openEngine(t.Context(), js, name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newMessage(id string) store.Message { return store.Message{Meta: message.Meta{ID: id}} }

// An iterator that replaces its consumer misses a Stop. The store can be closed
// nevertheless.
func TestEngine_IndexThatIsNotStopped(t *testing.T) {
	b := &breaking{JetStream: connect(t, fresh(t))}
	b.deaf.Store(true)
	s := openStore(t, b, newStore(t, b))
	_, err := s.Take(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the store waits for its index")
	}
}

// A queue whose index has failed is read again.
func TestEngine_IndexThatFails(t *testing.T) {
	b := &breaking{JetStream: connect(t, fresh(t))}
	s := openStore(t, b, newStore(t, b))
	require.NoError(t, s.Put(t.Context(), "q", newMessage("a")))
	taken, err := s.Take(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	b.failing.Store(true)
	require.NoError(t, s.Put(t.Context(), "q", newMessage("b")))
	require.Eventually(t, func() bool {
		_, err := s.Take(t.Context(), "q", 1, time.Minute)
		return errors.Is(err, errBroken)
	}, time.Minute, time.Millisecond)
	b.failing.Store(false)
	taken, err = s.Take(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
}

// A server that has lost the end of a stream stops no queue. Servers that sync do not
// lose it.
func TestEngine_ServerThatLostTheEnd(t *testing.T) {
	t.Parallel()
	dir, copied := t.TempDir(), t.TempDir()
	dialer := &switchable{}
	open := func() *embedded.Server {
		srv, err := embedded.Start(dir, embedded.Config{Logger: quiet()})
		require.NoError(t, err)
		dialer.server.Store(srv)
		return srv
	}
	srv := open()
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.SetCustomDialer(dialer), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	name := newStore(t, js)
	before := openStore(t, js, name)
	require.NoError(t, before.Put(t.Context(), "q", newMessage("a")))
	require.NoError(t, srv.Close())
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
	srv = open()
	var s *weirjs.Engine
	require.EventuallyWithT(t, func(t *assert.CollectT) { // a request that meets the end of the old connection is never answered
		var err error
		s, err = openEngine(context.Background(), js, name)
		require.NoError(t, err)
	}, time.Minute, 10*time.Millisecond)
	defer s.Close()
	const lease = 100 * time.Millisecond
	take := func() int {
		taken, err := s.Take(bounded(t), "q", 1, lease)
		if err != nil {
			return -1
		}
		return len(taken)
	}
	require.Eventually(t, func() bool { return take() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, srv.Close())
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(copied)))
	srv = open()
	defer srv.Close()
	require.Eventually(t, func() bool { return take() == 1 }, time.Minute, lease)
}

// behind is a server whose consumers report no pending messages, whatever follows.
type behind struct{ jetstream.JetStream }

func (b behind) CreateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := b.JetStream.CreateConsumer(ctx, stream, c)
	return behindConsumer{consumer}, err
}

type behindConsumer struct{ jetstream.Consumer }

func (c behindConsumer) CachedInfo() *jetstream.ConsumerInfo {
	info := *c.Consumer.CachedInfo()
	info.NumPending = 0
	return &info
}

func (c behindConsumer) Messages(opts ...jetstream.PullMessagesOpt) (jetstream.MessagesContext, error) {
	m, err := c.Consumer.Messages(opts...)
	return behindMessages{m}, err
}

type behindMessages struct{ jetstream.MessagesContext }

func (m behindMessages) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	msg, err := m.MessagesContext.Next(opts...)
	return behindMsg{msg}, err
}

type behindMsg struct{ jetstream.Msg }

func (m behindMsg) Metadata() (*jetstream.MsgMetadata, error) {
	at, err := m.Msg.Metadata()
	if err == nil {
		at.NumPending = 0
	}
	return at, err
}

// An input does not end before its stream, even if the server reports no pending
// messages.
func TestInput_EndByAServerThatIsBehind(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream+".a", "1", "2")
	publish(t, js, stream+".b", "3")
	publish(t, js, stream+".c", "4")
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	for i, want := range [][]string{{"1", "2", "3", "4"}, {"1", "2", "3"}} { // the second time without the last message
		got, err := values[string](behind{js}, stream)
		require.NoError(t, err)
		require.Equal(t, want, got)
		in := jscheckpoint.NewInput(behind{js}, stream, codec.JSON[string](), jscheckpoint.InputConfig{Subjects: []string{stream + ".a", stream + ".b"}, End: true})
		for n := range 3 {
			v, err := in.Next()
			require.NoError(t, err)
			require.Equal(t, want[n], v)
		}
		_, err = in.Next()
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, in.Close())
		if i == 0 {
			require.NoError(t, s.DeleteMsg(t.Context(), 4))
		}
	}
}

// cut dials a server until it is cut off.
type cut struct {
	switchable
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cut) Dial(network, address string) (net.Conn, error) {
	conn, err := c.switchable.Dial(network, address)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return conn, err
}

// off breaks the connection, and returns a function that allows another one.
func (c *cut) off() (on func()) {
	server := c.server.Swap(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	return func() { c.server.Store(server) }
}

// Laws D3 and P1: a worker that was cut off for longer than its lease does not replace
// the delay that another one has set since. Its acknowledgement counts.
func TestSource_WorkerThatWasCutOff(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	server := fresh(t)
	js := connect(t, server)
	for what, settle := range map[string]func(m message.Message[string]){
		"it extends its lease": func(message.Message[string]) {},
		"it nacks":             func(m message.Message[string]) { m.Nack(0) },
		"it acknowledges":      func(m message.Message[string]) { m.Ack() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			stream := newStream(t, js)
			publish(t, js, stream, "one")
			dialer := &cut{}
			dialer.server.Store(server)
			nc, err := nats.Connect("nats://127.0.0.1:1", nats.SetCustomDialer(dialer), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			cutOff, err := jetstream.New(nc)
			require.NoError(t, err)
			first := newSource(t, cutOff, stream, lease)
			m := one(t, first)
			on := dialer.off()
			require.Eventually(t, func() bool { return !nc.IsConnected() }, time.Minute, time.Millisecond)
			settle(m)
			second := newSource(t, js, stream, lease)
			due := time.Now().Add(3 * time.Second)
			one(t, second).Nack(3 * time.Second)
			require.NoError(t, second.Close(t.Context()))
			on()
			require.Eventually(t, nc.IsConnected, time.Minute, time.Millisecond)
			third := newSource(t, js, stream, lease)
			if what == "it acknowledges" {
				none(t, third, 6*time.Second)
				return
			}
			one(t, third)
			require.False(t, time.Now().Before(due), "it came %v early", time.Until(due))
		})
	}
}

// A grant ends with its lock, even if the same owner acquires the lock again.
func TestLock_OldGrantOfTheSameOwner(t *testing.T) {
	js := connect(t, fresh(t))
	l := openStore(t, js, newStore(t, js)).Locks()
	old, err := l.Acquire(t.Context(), "a", "me", time.Minute)
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context(), old))
	g, err := l.Acquire(t.Context(), "a", "me", time.Minute)
	require.NoError(t, err)
	require.ErrorIs(t, l.Extend(t.Context(), old, time.Minute), lock.ErrLost)
	require.ErrorIs(t, l.Release(t.Context(), old), lock.ErrLost)
	require.NoError(t, l.Release(t.Context(), g))
}
