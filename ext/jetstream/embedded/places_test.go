package embedded_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/internal/testing/suite"
)

// place is where a suite runs.
type place struct {
	connect  func(t *testing.T, opts ...nats.Option) jetstream.JetStream
	replicas int
	unit     time.Duration // much longer than a call of the server on an idle machine
}

// replicate keeps a stream on all servers.
func (p place) replicate(c *jetstream.StreamConfig) { c.Replicas = p.replicas }

// forSuites are the options of a server in this process. It does not sync, which no rule
// of the suites needs, and so answers quickly: the rules wait for times that must be much
// longer than a call. Tests that kill servers use servers that sync.
func forSuites(o *server.Options) {
	largePayload(o)
	o.SyncAlways = false
}

func largePayload(o *server.Options) { o.MaxPayload = 8 << 20 }

// forPlaces runs a suite on a server in this process. With WEIR_LONG, it also runs the
// suite on three servers in processes of their own.
func forPlaces(t *testing.T, f func(t *testing.T, p place)) {
	t.Run("servers=1", func(t *testing.T) {
		s := fresh(t, forSuites)
		f(t, place{
			connect:  func(t *testing.T, opts ...nats.Option) jetstream.JetStream { t.Helper(); return connect(t, s, opts...) },
			replicas: 1, unit: 200 * time.Millisecond,
		})
	})
	if !suite.Long() {
		return
	}
	t.Run("servers=3", func(t *testing.T) {
		c, _ := startCluster(t, clustertest.Config{Servers: 3})
		f(t, place{
			connect: func(t *testing.T, opts ...nats.Option) jetstream.JetStream {
				t.Helper()
				js, err := clustertest.Connect(c.URL(), opts...)
				require.NoError(t, err)
				t.Cleanup(js.Conn().Close)
				return js
			},
			replicas: 3, unit: 500 * time.Millisecond,
		})
	})
}

// unitNow measures calls of the server, which depend on the load of the machine, and
// returns a time that is much longer than a call, up to a second.
func (p place) unitNow(t *testing.T, js jetstream.JetStream) time.Duration {
	t.Helper()
	stream := newStream(t, js, p.replicate)
	var slowest time.Duration
	for range 5 {
		begun := time.Now()
		publish(t, js, stream, "x")
		slowest = max(slowest, time.Since(begun))
	}
	return min(max(p.unit, 20*slowest), time.Second)
}
