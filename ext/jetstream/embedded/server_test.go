package embedded_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
)

// quiet discards the warnings of a server.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start starts a server in a directory, which ends with the test.
func start(t *testing.T, dir string, changes ...func(*server.Options)) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(dir, embedded.Config{Logger: quiet(), Options: func(o *server.Options) {
		for _, change := range changes {
			change(o)
		}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// fresh starts a server whose directory is empty. It is not killed, so it need not sync.
func fresh(t *testing.T, changes ...func(*server.Options)) *embedded.Server {
	t.Helper()
	return start(t, t.TempDir(), append(changes, func(o *server.Options) { o.SyncAlways = false })...)
}

// connect returns a connection that ends with the test.
func connect(t *testing.T, s *embedded.Server, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := s.Connect(opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(30*time.Second)) // a busy machine
	require.NoError(t, err)
	return js
}

func TestServer_KeepsItsStreams(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	nc, err := s.Connect()
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "orders.1", []byte("one"))
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "a second Close")

	js = connect(t, start(t, dir))
	stream, err := js.Stream(t.Context(), "orders")
	require.NoError(t, err)
	m, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "one", string(m.Data))
}

func TestServer_DirectoryHasOneServer(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	_, err := embedded.Start(dir, embedded.Config{Logger: quiet()})
	require.ErrorContains(t, err, dir)
	require.NoError(t, s.Close())
	start(t, dir)
}

func TestServerOptionsAreTheLastWord(t *testing.T) {
	s := start(t, t.TempDir(), func(o *server.Options) {
		require.True(t, o.SyncAlways)
		o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	})
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	nc.Close()
}

func TestServer_WrongArguments(t *testing.T) {
	_, err := embedded.Start("", embedded.Config{})
	require.Error(t, err)
	_, err = embedded.Start(t.TempDir(), embedded.Config{Logger: quiet(), Options: func(o *server.Options) { o.ServerName = "a b" }})
	require.Error(t, err)
}

// A port that is taken is an error at once.
func TestServer_PortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	begun := time.Now()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	_, err = embedded.Start(t.TempDir(), embedded.Config{Logger: logger, Options: func(o *server.Options) {
		o.DontListen, o.Host, o.Port = false, "127.0.0.1", taken.Addr().(*net.TCPAddr).Port
	}})
	require.ErrorContains(t, err, "address already in use")
	require.Contains(t, log.String(), "address already in use")
	require.Less(t, time.Since(begun), 30*time.Second)
}

func TestClustersThatCannotBe(t *testing.T) {
	good := embedded.Cluster{
		Name: "c", Server: "a", Clients: "127.0.0.1:4222", Address: "127.0.0.1:6222", Servers: []string{"127.0.0.1:6222", "127.0.0.1:6223"},
	}
	for what, change := range map[string]func(*embedded.Cluster){
		"names":           func(c *embedded.Cluster) { c.Name = "" },
		`server ""`:       func(c *embedded.Cluster) { c.Server = "" },
		"127.0.0.1:9":     func(c *embedded.Cluster) { c.Address = "127.0.0.1:9" },
		"missing port":    func(c *embedded.Cluster) { c.Clients = "localhost" },
		"from 1 to 65535": func(c *embedded.Cluster) { c.Clients = "localhost:0" },
		"127.0.0.1:99999": func(c *embedded.Cluster) { c.Servers = []string{"127.0.0.1:6222", "127.0.0.1:99999"} },
	} {
		c := good
		change(&c)
		_, err := embedded.Start(t.TempDir(), embedded.Config{Logger: quiet(), Cluster: &c})
		require.ErrorContains(t, err, what)
	}
}

// Confirmed messages are on other servers of a cluster: they stay when a server is lost
// with its directory.
func TestCluster_ServerIsLost(t *testing.T) {
	t.Parallel()
	c, js := startCluster(t, clustertest.Config{Servers: 3})
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, Replicas: 3})
	require.NoError(t, err)
	publish(t, js, "orders", "one", "two")
	ctx := bounded(t)
	require.NoError(t, c.Synced(ctx, js, "orders"))
	leader, err := c.Leader(ctx, js, "orders")
	require.NoError(t, err)
	require.NoError(t, c.Kill(leader))
	require.NoError(t, os.RemoveAll(c.Dir(leader)))
	next, err := c.Leader(ctx, js, "orders")
	require.NoError(t, err)
	require.NotEqual(t, leader, next)
	require.NoError(t, c.Restart(leader))
	require.NoError(t, c.Synced(ctx, js, "orders"))
	got, err := values[string](js, "orders")
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, got)
}
