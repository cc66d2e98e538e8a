package embedded_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/jetstream/embedded"
)

// quiet discards the warnings of a server.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start starts a server in a directory, which ends with the test.
func start(t *testing.T, dir string, opts ...embedded.Option) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(dir, append([]embedded.Option{embedded.WithLogger(quiet())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// connect returns a connection that ends with the test.
func connect(t *testing.T, s *embedded.Server, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := s.Connect(opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

func TestKeepsItsStreams(t *testing.T) {
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

func TestADirectoryHasOneServer(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	_, err := embedded.Start(dir, embedded.WithLogger(quiet()))
	require.ErrorContains(t, err, dir)
	require.NoError(t, s.Close())
	start(t, dir)
}

func TestServerOptionsAreTheLastWord(t *testing.T) {
	s := start(t, t.TempDir(), embedded.WithServerOptions(func(o *server.Options) {
		require.True(t, o.SyncAlways)
		o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	}))
	nc, err := nats.Connect(s.URL())
	require.NoError(t, err)
	nc.Close()
}

func TestWrongArguments(t *testing.T) {
	_, err := embedded.Start("")
	require.Error(t, err)
	require.Panics(t, func() { embedded.WithLogger(nil) })
	require.Panics(t, func() { embedded.WithServerOptions(nil) })
	_, err = embedded.Start(t.TempDir(), embedded.WithLogger(quiet()), embedded.WithServerOptions(func(o *server.Options) { o.ServerName = "a b" }))
	require.Error(t, err)
}
