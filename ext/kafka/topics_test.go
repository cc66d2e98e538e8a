package kafka

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/partitions"
)

// logs keeps what was logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// tick moves the clock on until something has been logged.
func tick(t *testing.T, mock *clock.Mock, l *logs, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		mock.Add(lookEvery)
		return strings.Contains(l.String(), want)
	}, time.Minute, 10*time.Millisecond, "%s: %s", want, l)
}

func TestMissingTopic(t *testing.T) {
	c := newCluster(t, 1, "orders")
	mock, l := clock.NewMock(), &logs{}
	s, err := NewSource("group", []string{"orders", "ordres"}, text(), c.quick(), WithLogger(l.logger()), WithClock(mock))
	require.NoError(t, err)
	defer s.Close(context.Background())
	c.produce("orders", 1, "a")
	receive(t, s, 1)[0].Ack() // the other topic works

	tick(t, mock, l, "topic does not exist")
	require.Contains(t, l.String(), "topic=ordres")
	require.NotContains(t, l.String(), "topic=orders", "it exists")
	for range 3 {
		mock.Add(lookEvery)
	}
	require.Equal(t, 1, strings.Count(l.String(), "topic=ordres"), "it is said once")

	_, err = kadm.NewClient(c.admin).CreateTopic(t.Context(), 1, 1, nil, "ordres")
	require.NoError(t, err)
	c.produce("ordres", 1, "b")
	tick(t, mock, l, "all topics exist now")
	receive(t, s, 1)[0].Ack()
}

func TestMissingTopicOfGroup(t *testing.T) {
	c := newCluster(t, 1)
	mock, l := clock.NewMock(), &logs{}
	g := &Group{Client: []kgo.Opt{c.seed()}, Name: "group", Topics: []string{"ordres"}, Logger: l.logger(), Clock: mock}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.Run(ctx, noPartitions{}) }()
	tick(t, mock, l, "topic=ordres")
	cancel()
	require.NoError(t, <-ended)
}

type noPartitions struct{ partitions.Handler }

func TestNoBroker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close()) // nothing listens there
	mock, l := clock.NewMock(), &logs{}
	s, err := NewSource("group", []string{"orders"}, text(), WithClient(kgo.SeedBrokers(listener.Addr().String())), WithLogger(l.logger()), WithClock(mock))
	require.NoError(t, err)
	tick(t, mock, l, "the brokers do not answer")
	require.Contains(t, l.String(), listener.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = s.Close(ctx)
	require.NoError(t, s.Close(context.Background()))
}
