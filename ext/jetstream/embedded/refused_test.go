package embedded_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

const maxPayload = 1 << 20 // of a server in this process

// Regression (law W2): a message near the server's largest size, whose failure fits into
// no layer and no dead letter, held its slot for ever. Its dead letter points to it, and
// it stays in the stream.
func TestFailuresThatAreTooLarge(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]jetstream.RetentionPolicy{"limits": jetstream.LimitsPolicy, "work queue": jetstream.WorkQueuePolicy} {
		t.Run(name, func(t *testing.T) {
			failuresThatAreTooLarge(t, connect(t, fresh(t)), time.Second, func(c *jetstream.StreamConfig) { c.Retention = retention })
		})
	}
	t.Run("three servers in processes of their own", func(t *testing.T) {
		t.Parallel()
		_, js := startCluster(t, clustertest.Config{Servers: 3})
		failuresThatAreTooLarge(t, js, 3*time.Second, func(c *jetstream.StreamConfig) { c.Replicas = 3 }, weirjs.WithReplicas(3))
	})
}

func failuresThatAreTooLarge(t *testing.T, js jetstream.JetStream, lease time.Duration, change func(*jetstream.StreamConfig), opts ...weirjs.Option) {
	t.Helper()
	largest := int(js.Conn().MaxPayload())
	stream := newStream(t, js, change)
	publish(t, js, stream, strings.Repeat("x", largest-100), "small")
	s := engineOf(t, js, stream, opts...)
	require.ErrorIs(t, s.Put(bounded(t), "own", store.Message{Meta: message.Meta{ID: "a"}, Payload: make([]byte, largest)}), message.ErrRefused)
	q := delivery.NewQueue[string](s, "q", delivery.RetryAfter(time.Hour), delivery.WithLease(lease), delivery.WithLogger(quiet()))
	op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ string) (string, error) {
		predicates.ReportStage(ctx, predicates.ClientDispatch)
		return "", fmt.Errorf("503: %w", syscall.ECONNREFUSED) // which goes to a layer
	}), time.Minute, 1, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet()))
	ctx, cancel := context.WithCancel(bounded(t))
	ran := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, q.Source(weirjs.NewSource(js, codec.JSON[string](), sourceConfig(s, stream, lease))), op, sinkTo(t, js, stream, stream+".results"), delivery.WithLogger(quiet()), delivery.WithFloodGuard(1, 1))
		ran <- err
	}()
	entries := func(queue string) []store.Entry {
		es, err := s.List(bounded(t), queue, store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		return es
	}
	require.Eventually(t, func() bool { return len(entries("q-dead")) == 1 && len(entries("q-retry-1")) == 1 }, time.Minute, 10*time.Millisecond)
	letter := entries("q-dead")[0]
	require.Equal(t, store.Refused, letter.Cause)
	require.Equal(t, idIn(t, js, stream, 1), letter.Meta.ID)
	require.Contains(t, letter.Meta.LastError, "stays in stream "+stream+", message 1")
	require.Contains(t, letter.Meta.LastError, "503")
	time.Sleep(lease + lease/2)
	cancel()
	require.NoError(t, <-ran)
	require.Len(t, entries("q-dead"), 1)
	kept, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	m, err := kept.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, len(m.Data), largest-200)
}

// Regression (law W2): a result that was too large for the server was requested again
// every ten seconds.
func TestResultsThatAreTooLarge(t *testing.T) {
	js := connect(t, fresh(t))
	results := newStream(t, js)
	for _, name := range []string{"stream", "queue"} {
		t.Run(name, func(t *testing.T) {
			stream := newStream(t, js)
			publish(t, js, stream, "large", "small")
			s := engineOf(t, js, stream)
			q := delivery.NewQueue[string](s, "q", delivery.WithLogger(quiet()))
			var sink delivery.Sink[string] = sinkTo(t, js, results, results)
			if name == "queue" {
				sink = delivery.NewQueue[string](s, "own")
			}
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) {
				if v == "large" {
					v = strings.Repeat("x", maxPayload+1)
				}
				return v, nil
			}), time.Minute, 2, asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet()))
			ctx, cancel := context.WithCancel(bounded(t))
			ran := make(chan error, 1)
			var sum delivery.Summary
			go func() {
				var err error
				sum, err = delivery.Run(ctx, q.Source(weirjs.NewSource(js, codec.JSON[string](), sourceConfig(s, stream, time.Minute))), op, sink, delivery.WithLogger(quiet()))
				ran <- err
			}()
			var es []store.Entry
			require.Eventually(t, func() bool {
				var err error
				es, err = s.List(bounded(t), q.DeadLetters(), store.Filter{}, store.Page{Max: 10})
				require.NoError(t, err)
				return len(es) == 1
			}, time.Minute, 10*time.Millisecond)
			require.Equal(t, store.UnsafeToRepeat, es[0].Cause, "the call has succeeded")
			require.Equal(t, `"large"`, string(es[0].Payload), "its bytes as received")
			cancel()
			require.NoError(t, <-ran)
			require.Equal(t, 1, sum.Done)
			require.Equal(t, 1, sum.Rejected)
		})
	}
}
