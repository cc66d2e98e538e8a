package embedded_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
)

// Laws D4, W2: a message that kills its process stopped the queue for ever, and its batch died with it each time. Its deliveries are
// counted by the server; a message that was in such a batch comes alone.
func TestWhatKillsItsProcess(t *testing.T) {
	t.Parallel()
	srv := fresh(t)
	js := connect(t, srv)
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	const lease = 2 * time.Second // on a busy machine, shorter leases also end while their holder lives
	newConsumer(t, js, stream, lease)
	for i := range 20 {
		publish(t, js, stream, strconv.Itoa(i))
	}
	tries, deaths := map[string]int{}, 0
	work := func() (killed bool) { // a process
		own := connect(t, srv)
		s := newSource(t, own, stream, lease)
		for count(t, js, stream) > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			ms, _ := s.Receive(ctx, 10)
			cancel()
			for _, m := range ms {
				tries[m.Value]++
			}
			for _, m := range ms {
				if m.Value == "5" {
					own.Conn().Close()
					return true
				}
				m.Ack()
			}
			time.Sleep(10 * time.Millisecond) // the acknowledgements
		}
		return false
	}
	for work() {
		deaths++
		require.LessOrEqual(t, deaths, 20)
	}
	require.LessOrEqual(t, deaths, 10)
	require.GreaterOrEqual(t, deaths, 5, "a delivery that comes after its Receive has given up counts, too")
	es, err := engineOf(t, js, stream, lease).List(t.Context(), "q-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, es, 1)
	require.Equal(t, store.Lapsed, es[0].Cause)
	require.Equal(t, `"5"`, string(es[0].Payload))
	require.Len(t, tries, 20)
	for value, n := range tries {
		if value != "5" {
			require.LessOrEqual(t, n, 3, value)
		}
	}
}

// What waits to be alone when the engine is closed comes again after its lease. To give it back used a connection of the caller, at the same
// time as Close did, and left a subscription there.
func TestCloseWhileMessagesWaitToBeAlone(t *testing.T) {
	t.Parallel()
	srv := fresh(t)
	js := connect(t, srv)
	stream := newStream(t, js)
	publish(t, js, stream, "a", "b", "c")
	batch, err := newConsumer(t, js, stream, time.Second).Fetch(3) // of a worker that dies
	require.NoError(t, err)
	for range batch.Messages() {
	}
	own := connect(t, srv)
	e, err := weirjs.New(t.Context(), own, weirjs.Config{Stream: "weir-" + stream, Logger: quiet(), Foreign: map[string]weirjs.Foreign{"q": {Stream: stream, Consumer: "workers"}}})
	require.NoError(t, err)
	before := own.Conn().NumSubscriptions()
	notified := make(chan error, 1)
	go func() { notified <- e.Wake(bounded(t), "q", func(bool) {}) }()
	require.Eventually(t, func() bool {
		taken, err := e.Take(bounded(t), "q", 10, time.Second)
		require.NoError(t, err)
		return len(taken) > 0
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, e.Close())
	require.ErrorIs(t, <-notified, store.ErrClosed)
	require.Eventually(t, func() bool { return own.Conn().NumSubscriptions() <= before }, 10*time.Second, 10*time.Millisecond)
}

// What a dead worker had comes although there is always something else (law D4).
func TestWhatADeadWorkerHadComesBesideABacklog(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "dead")
	batch, err := newConsumer(t, js, stream, time.Second).Fetch(1)
	require.NoError(t, err)
	for range batch.Messages() {
	}
	for i := range 500 {
		publish(t, js, stream, strconv.Itoa(i))
	}
	e := engineOf(t, js, stream, time.Second)
	took := 0
	require.Eventually(t, func() bool { // its lease ends meanwhile
		taken, err := e.Take(bounded(t), "q", 10, time.Second)
		require.NoError(t, err)
		for _, l := range taken {
			if string(l.Payload) == `"dead"` {
				return true
			}
			require.NoError(t, e.Done(t.Context(), l.Lease))
			publish(t, js, stream, "more") // the backlog stays
		}
		took += len(taken)
		return false
	}, 30*time.Second, 10*time.Millisecond)
	require.Positive(t, took)
}
