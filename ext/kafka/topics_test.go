package kafka

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

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
	s, err := newTestSource("group", []string{"orders", "ordres"}, c.quick(), withLogger(l.logger()), withClock(mock))
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
	require.Equal(t, 1, strings.Count(l.String(), "topic=ordres"), "it is logged once")

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

func TestOpen_NoBroker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close()) // the address is free now
	mock, l := clock.NewMock(), &logs{}
	s, err := newTestSource("group", []string{"orders"}, withClient(kgo.SeedBrokers(listener.Addr().String())), withLogger(l.logger()), withClock(mock))
	require.NoError(t, err)
	tick(t, mock, l, "the brokers do not answer")
	require.Contains(t, l.String(), listener.Addr().String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = s.Close(ctx)
	require.NoError(t, s.Close(context.Background()))
}

// A wrong password ends the start with its reason, and the error does not contain the
// password. A start waits for brokers that do not answer.
func TestOpen_WrongPassword(t *testing.T) {
	t.Parallel()
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "admin"))
	require.NoError(t, err)
	seeds := kgo.SeedBrokers(k.ListenAddrs()...)
	start := func(opts ...kgo.Opt) map[string]error {
		opts = append(opts, seeds)
		errs := map[string]error{}
		source, err := newTestSource("billing", []string{"orders"}, withClient(opts...), withLogger(silent))
		if errs["source"] = err; err == nil {
			assert.NoError(t, source.Close(t.Context()))
		}
		engine, err := Open(t.Context(), strings.Join(k.ListenAddrs(), ","), WithClientOptions(opts...))
		if errs["engine"] = err; err == nil {
			assert.NoError(t, engine.Close())
		}
		output, err := newOutput(OutputConfig[string]{Client: opts, TransactionalID: "t", Topic: "orders", Encode: func(string) (*kgo.Record, error) { return nil, nil }})
		if errs["output"] = err; err == nil {
			_ = output.Close()
		}
		errs["group"] = (&Group{Client: opts, Name: "billing", Topics: []string{"orders"}, Logger: silent}).Run(canceled(), given(func() {}))
		return errs
	}
	k.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		auth := req.(*kmsg.SASLAuthenticateRequest)
		if !bytes.Contains(auth.SASLAuthBytes, []byte("s3cr3t")) {
			return nil, nil, false
		}
		resp := auth.ResponseKind().(*kmsg.SASLAuthenticateResponse) // as Kafka does; kfake closes the connection
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	for what, err := range start(kgo.SASL(plain.Auth{User: "admin", Pass: "s3cr3t"}.AsMechanism())) {
		assert.ErrorContains(t, err, "kafka: the brokers refuse the authentication: ", what)
		assert.NotContains(t, fmt.Sprint(err), "s3cr3t")
	}
	for what, err := range start(kgo.SASL(plain.Auth{User: "admin", Pass: "admin"}.AsMechanism())) {
		assert.NoError(t, err, what)
	}
	k.Close()
	client, err := newClient(seeds, kgo.SASL(plain.Auth{User: "admin", Pass: "s3cr3t"}.AsMechanism()))
	require.NoError(t, err)
	client.Close()
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
