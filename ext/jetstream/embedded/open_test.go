package embedded_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// listening gives a server an address.
func listening(address string) func(*server.Options) {
	return func(o *server.Options) {
		a, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			panic(err)
		}
		o.DontListen, o.Host, o.Port = false, a.IP.String(), a.Port
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Open makes the stream, logs that, and finds it the next time.
func TestOpen(t *testing.T) {
	srv := fresh(t)
	var log bytes.Buffer
	inProcess := weirjs.WithNATSOptions(srv.InProcess())
	open := func(opts ...weirjs.Option) (*weirjs.Engine, error) {
		return weirjs.Open(t.Context(), "", append([]weirjs.Option{inProcess, weirjs.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}, opts...)...)
	}
	_, err := open(weirjs.WithExistingStream())
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	require.ErrorContains(t, err, `StreamConfig("weir")`)
	e, err := open(weirjs.WithReplicas(1), weirjs.WithStream("shop"), weirjs.WithStreamConfig(func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 30 }))
	require.NoError(t, err)
	require.Contains(t, log.String(), "made the stream of queues")
	require.Contains(t, log.String(), `stream=shop replicas=1 "max bytes"=1073741824 "max messages"=-1 duplicates=2m0s`)
	q := delivery.NewQueue[string](e, "q", delivery.WithMaxDepth(2))
	require.NoError(t, q.Put(t.Context(), "one"))
	require.NoError(t, q.Put(t.Context(), "two", delivery.After(time.Hour)))
	require.ErrorIs(t, q.Put(t.Context(), "three"), store.ErrFull)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close(), "a second Close")

	log.Reset()
	e, err = open(weirjs.WithStream("shop"))
	require.NoError(t, err)
	defer e.Close()
	require.Empty(t, log.String())
	counts, err := delivery.NewQueue[string](e, "q").Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, counts.Waiting)
	_, err = jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	_, err = open(weirjs.WithStream("shop2"), weirjs.WithStreamConfig(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }))
	require.ErrorContains(t, err, "MaxMsgsPerSubject must be 1")
	_, err = open(weirjs.WithStream("shop3"), weirjs.WithStreamConfig(func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }))
	require.ErrorContains(t, err, "DiscardNewPerSubject must be false")
	_, err = open(weirjs.WithStream("shop4"), weirjs.WithStreamConfig(func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL, c.AllowRollup = time.Minute, true }))
	require.ErrorContains(t, err, "SubjectDeleteMarkerTTL 0")
	require.Panics(t, func() { _, _ = open(weirjs.WithStream("a.b")) })
}

// A start while the servers are unavailable is retried, as a run is; a refusal is an
// error at once.
func TestOpenWhileServersAreAway(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	opened := make(chan error, 1)
	go func() {
		e, err := weirjs.Open(bounded(t), "nats://"+address, weirjs.WithLogger(quiet()))
		if err == nil {
			err = e.Close()
		}
		opened <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := weirjs.Open(ctx, "nats://"+address, weirjs.WithLogger(quiet()))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, nats.ErrNoServers, "and why")
	select {
	case err := <-opened:
		require.FailNow(t, "it does not wait", err)
	default:
	}
	start(t, t.TempDir(), listening(address))
	require.NoError(t, <-opened)
}

// The servers that the address names first take connections and never answer. (The kernel
// completes the connections.)
func TestOpen_FirstServersAreSilent(t *testing.T) {
	t.Parallel()
	var addresses []string
	for range 2 {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = silent.Close() })
		addresses = append(addresses, "nats://"+silent.Addr().String())
	}
	address := freeAddress(t)
	start(t, t.TempDir(), listening(address))
	e, err := weirjs.Open(bounded(t), strings.Join(append(addresses, "nats://"+address), ","),
		weirjs.WithLogger(quiet()), weirjs.WithNATSOptions(nats.DontRandomize(), nats.Timeout(time.Second)))
	require.NoError(t, err)
	require.NoError(t, e.Close())
}

// Servers that were restarted find no place for three replicas before they know the third
// server.
func TestOpenWhileAServerIsUnknown(t *testing.T) {
	t.Parallel()
	cluster, _ := startCluster(t, clustertest.Config{Servers: 3})
	for i := range 3 {
		require.NoError(t, cluster.Kill(i))
	}
	for i := range 2 {
		require.NoError(t, cluster.Restart(i))
	}
	log := make(logged, 100)
	opened := make(chan error, 1)
	go func() {
		e, err := weirjs.Open(bounded(t), cluster.URL(), weirjs.WithReplicas(3), weirjs.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		if err == nil {
			err = e.Close()
		}
		opened <- err
	}()
	for waits := false; !waits; {
		select {
		case line := <-log:
			waits = strings.Contains(line, "no suitable peers") && strings.Contains(line, "too few servers")
		case err := <-opened:
			require.FailNow(t, "it does not wait", err)
		}
	}
	require.NoError(t, cluster.Restart(2))
	require.NoError(t, <-opened)
}

type logged chan string

func (l logged) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestOpenWithTheWrongPassword(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	start(t, t.TempDir(), listening(address), func(o *server.Options) { o.Username, o.Password = "u", "right" })
	_, err := weirjs.Open(bounded(t), "nats://u:s3cr3t@"+address, weirjs.WithLogger(quiet()))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.NotContains(t, err.Error(), "s3cr3t")
	e, err := weirjs.Open(bounded(t), "nats://u:right@"+address, weirjs.WithLogger(quiet()))
	require.NoError(t, err)
	require.NoError(t, e.Close())
}

// Regression: the password of the address was in the error, and in the log of each try.
func TestOpenWithWhatIsNeverRight(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var log bytes.Buffer
	logger := weirjs.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	for _, address := range []string{"nats://u:s3cr3t%@127.0.0.1:1", "nats://u:%3s3cr3t@127.0.0.1:1", "nats://u:s3cr3t#@127.0.0.1:1"} {
		_, err := weirjs.Open(ctx, address, logger)
		require.ErrorContains(t, err, "an address is not a URL")
		require.NotContains(t, err.Error(), "s3cr3t")
	}
	_, err := weirjs.Open(ctx, "nats://127.0.0.1:1", logger, weirjs.WithNATSOptions(nats.RootCAs("none.pem")))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, ctx.Err(), "it is not tried again")
	require.Empty(t, log.String())
}

// A proxy takes connections before there is a server behind it.
func TestOpenThroughAProxyWithoutAServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var tries atomic.Int32
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { // ends with l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			if tries.Add(1) == 2 {
				cancel()
			}
		}
	}()
	defer l.Close()
	_, err = weirjs.Open(ctx, "nats://"+l.Addr().String(), weirjs.WithLogger(quiet()))
	require.ErrorIs(t, err, context.Canceled)
}

// A closed connection does not reconnect, so a worker that continued would be idle for
// ever.
func TestOpen_ClosedConnectionIsPermanent(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	e, err := weirjs.New(t.Context(), js, weirjs.WithLogger(quiet()))
	require.NoError(t, err)
	js.Conn().Close()
	_, err = e.Take(bounded(t), "q", 1, time.Minute)
	require.True(t, guard.IsPermanent(err), err)
	err = e.Put(bounded(t), "q", store.Message{Meta: message.Meta{ID: "a"}})
	require.True(t, guard.IsPermanent(err), err)
	require.NoError(t, e.Close())
}
