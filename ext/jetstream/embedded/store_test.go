package embedded_test

import (
	"context"
	"encoding/base64"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// newStore makes a stream for a store.
func newStore(t *testing.T, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) string {
	t.Helper()
	name := newStream(t, js, append([]func(*jetstream.StreamConfig){func(c *jetstream.StreamConfig) { *c = weirjs.StreamConfig(c.Name) }}, change...)...)
	return name
}

// openEngine opens the engine in a stream that is there.
func openEngine(ctx context.Context, js jetstream.JetStream, name string, opts ...weirjs.Option) (*weirjs.Engine, error) {
	return weirjs.New(ctx, js, append([]weirjs.Option{weirjs.WithStream(name), weirjs.WithExistingStream(), weirjs.WithLogger(quiet())}, opts...)...)
}

// tokenOf returns the name of a queue as subjects have it.
func tokenOf(queue string) string { return base64.RawURLEncoding.EncodeToString([]byte(queue)) }

func TestStore(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		deliverytest.RunStore(t, func(t *testing.T) deliverytest.StoreSetup {
			name := newStore(t, js, p.replicate)
			return deliverytest.StoreSetup{
				Open: func() (store.Store, error) { return openEngine(context.Background(), js, name) },
				Wait: time.Sleep, RealTime: true, Unit: p.unitNow(t, js), LooksFirst: true,
				Full: func() (store.Store, error) {
					full := newStore(t, js, p.replicate, func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 10 })
					return openEngine(context.Background(), js, full)
				},
			}
		})
	})
}

func TestLocks(t *testing.T) {
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		deliverytest.RunLocks(t, func(t *testing.T) deliverytest.LockSetup {
			name := newStore(t, js, p.replicate)
			return deliverytest.LockSetup{
				Open: func() (lock.Locks, error) {
					s, err := openEngine(context.Background(), js, name)
					if err != nil {
						return nil, err
					}
					return s.Locks(), nil
				},
				Wait: time.Sleep, Unit: p.unitNow(t, js),
			}
		})
	})
}

// Law D3: a delay is in a header of ours, to the nanosecond, so it holds over restarts of
// the server.
func TestDelaysOverARestartOfTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv := start(t, dir)
	js := connect(t, srv)
	name := newStore(t, js)
	s, err := openEngine(t.Context(), js, name)
	require.NoError(t, err)
	due := map[string]time.Time{}
	var ms []store.Message
	for i := range 50 {
		ms = append(ms, store.Message{Meta: message.Meta{ID: strconv.Itoa(i)}, Delay: 2*time.Second + time.Duration(i)*20*time.Millisecond})
	}
	require.NoError(t, s.Put(t.Context(), "q", ms...))
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	for i, m := range ms { // the server stores them after the beginning of Put
		stored, err := stream.GetMsg(t.Context(), uint64(i)+2) // the name of the queue is at 1
		require.NoError(t, err)
		due[m.Meta.ID] = stored.Time.Add(m.Delay)
	}
	require.NoError(t, s.Close())
	js.Conn().Close()
	require.NoError(t, srv.Close())
	// A Take without a sync returns within less than a millisecond, so the test notices
	// messages that are slightly early.
	again := start(t, dir, func(o *server.Options) { o.SyncAlways = false })
	s, err = openEngine(t.Context(), connect(t, again), name)
	require.NoError(t, err)
	defer s.Close()
	for len(due) > 0 {
		taken, err := s.Take(t.Context(), "q", 100, time.Minute)
		now := time.Now()
		require.NoError(t, err)
		for _, l := range taken {
			require.False(t, now.Before(due[l.Meta.ID]), "%s came %v early", l.Meta.ID, due[l.Meta.ID].Sub(now))
			require.Contains(t, due, l.Meta.ID, "twice")
			delete(due, l.Meta.ID)
		}
	}
}

// One message that the server refuses keeps the others of its call out.
func TestPutIsOneTransaction(t *testing.T) {
	js := connect(t, fresh(t))
	s, err := openEngine(t.Context(), js, newStore(t, js))
	require.NoError(t, err)
	defer s.Close()
	good := store.Message{Meta: message.Meta{ID: "good"}}
	large := store.Message{Meta: message.Meta{ID: "large"}, Payload: make([]byte, 2<<20)} // more than the server's MaxPayload
	require.Error(t, s.Put(t.Context(), "q", good, large))
	c, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Zero(t, c.Messages)
	require.NoError(t, s.Put(t.Context(), "q", good))
}

// A mark of a moved message is not a message, and another message can replace it.
func TestMovedThereAndBack(t *testing.T) {
	js := connect(t, fresh(t))
	s, err := openEngine(t.Context(), js, newStore(t, js))
	require.NoError(t, err)
	defer s.Close()
	m := store.Message{Meta: message.Meta{ID: "a"}, Payload: []byte("x")}
	require.NoError(t, s.Put(t.Context(), "0", m, store.Message{Meta: message.Meta{ID: "b"}}))
	for i := range 6 {
		from, to := strconv.Itoa(i%2), strconv.Itoa((i+1)%2)
		taken, err := s.Take(t.Context(), from, 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 2)
		require.NoError(t, s.Move(t.Context(),
			store.Move{Lease: taken[0].Lease, Queue: to, Message: taken[0].Message},
			store.Move{Lease: taken[1].Lease, Queue: to, Message: taken[1].Message}))
		names, err := s.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{to}, names)
	}
	// Within a queue, under the same identity.
	taken, err := s.Take(t.Context(), "0", 10, time.Minute)
	require.NoError(t, err)
	changed := taken[0].Message
	changed.Payload = []byte("changed")
	require.NoError(t, s.Move(t.Context(), store.Move{Lease: taken[0].Lease, Queue: "0", Message: changed}))
	again, err := s.Take(t.Context(), "0", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.Equal(t, "changed", string(again[0].Payload))
}

// Law D4: a message that another program has published to the stream does not belong to a
// queue, and does not block any queue.
func TestMessagesOfOthersInTheStream(t *testing.T) {
	js := connect(t, fresh(t))
	name := newStore(t, js)
	s, err := openEngine(t.Context(), js, name)
	require.NoError(t, err)
	defer s.Close()
	own := []store.Message{{Meta: message.Meta{ID: "a"}}, {Meta: message.Meta{ID: "b"}}, {Meta: message.Meta{ID: "c"}}}
	require.NoError(t, s.Put(t.Context(), "q", own...))
	other := "weir.store." + name + "." + tokenOf("q") + ".other"
	_, err = js.Publish(t.Context(), other, []byte("hello")) // at the end of the queue
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "weir.store."+name+".no%queue.other", nil)
	require.NoError(t, err)

	taken, err := s.Take(t.Context(), "q", 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	entries, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, entries, 3)
	counts, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 3, counts.Messages)
	names, err := s.Queues(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"q"}, names)
	_, err = js.Publish(t.Context(), other, []byte("hello again")) // the index has already read the queue
	require.NoError(t, err)
	require.NoError(t, s.Done(t.Context(), taken[0].Lease))
	taken, err = s.Claim(t.Context(), "q", store.Filter{}, store.Page{Max: 1}, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	taken, err = s.Take(t.Context(), "q", 10, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	n, err := s.Purge(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = js.Publish(t.Context(), other, []byte("and again"))
	require.NoError(t, err, "the others' messages stay theirs")
}

// Law W2 for MaxMsgSize: a message that is too large for the stream looks in a
// transaction like a transaction that the server has lost.
func TestStreamsThatDoNotFitAStore(t *testing.T) {
	js := connect(t, fresh(t))
	for what, change := range map[string]func(*jetstream.StreamConfig){
		"MaxMsgsPerSubject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 },
		"MaxAge 0":          func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"atomic":            func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
		"direct":            func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"MaxMsgSize":        func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 20 },
	} {
		_, err := openEngine(t.Context(), js, newStore(t, js, change))
		require.ErrorContains(t, err, what)
	}
	_, err := openEngine(t.Context(), js, "none")
	require.ErrorContains(t, err, "none")
}

// A source over a store is woken by Puts of others.
func TestSourceOverAStore(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	name := newStore(t, js)
	open := func() *weirjs.Engine {
		s, err := openEngine(t.Context(), js, name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	s, other := open(), open()
	source := delivery.NewQueue[string](s, "q").Source(nil)
	defer source.Close(context.Background())
	none(t, source, 300*time.Millisecond)
	require.NoError(t, delivery.NewQueue[string](other, "q").Put(t.Context(), "one", delivery.ID("a")))
	m := one(t, source)
	require.Equal(t, "one", m.Value)
	m.Ack()
}

// The messages that an earlier version of a program has left in layers and behind others
// of their key.
func TestEngine_MessagesOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	s, err := openEngine(t.Context(), js, newStore(t, js))
	require.NoError(t, err)
	defer s.Close()
	storebench.Earlier(t, s, false)
}

func TestEngine_MergeIntoTheOutboxWhileTheSameIDIsPublished(t *testing.T) {
	js := connect(t, fresh(t))
	s, err := openEngine(t.Context(), js, newStore(t, js))
	require.NoError(t, err)
	defer s.Close()
	storebench.Merged(t, s, memory.Open().Locks())
}

// A merge and a count are one pass over a queue, and a second count reads no messages:
// 100,000 dead letters take less than a minute.
func TestEngine_ManyDeadLetters(t *testing.T) {
	t.Parallel()
	n := 5000
	if suite.Long() {
		n = 100_000
	}
	js := connect(t, fresh(t))
	name := newStore(t, js)
	s := openStore(t, js, name)
	for i := 0; i < n; i += 1000 {
		var ms []store.Message
		for k := range 1000 {
			meta := message.Meta{ID: strconv.Itoa(i + k), Key: strconv.Itoa(k % 10), LastError: "no answer", Reasons: []string{"TIMED_OUT"}, Visit: 3}
			ms = append(ms, store.Message{Meta: meta, Payload: make([]byte, 256), Cause: store.Exhausted})
		}
		require.NoError(t, s.Put(t.Context(), "dead", ms...))
	}
	begun := time.Now()
	lap := func(what string) {
		t.Logf("%d messages: %s: %v", n, what, time.Since(begun).Round(time.Millisecond))
		begun = time.Now()
	}
	counts := func(f store.Filter) store.Counts {
		c, err := s.Count(t.Context(), "dead", f)
		require.NoError(t, err)
		return c
	}
	require.Equal(t, map[store.Cause]int{store.Exhausted: n}, counts(store.Filter{}).Causes)
	lap("the first count, which reads the headers")
	require.Equal(t, n, counts(store.Filter{Reason: "TIMED_OUT"}).Messages)
	lap("the second count")
	require.Equal(t, n/10, counts(store.Filter{Key: "3"}).Messages)
	lap("a count by key")
	j, err := jobs.New(s, jobs.Config{})
	require.NoError(t, err)
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", By: "ann", Why: "test"})
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Equal(t, n, job.Done)
	require.Zero(t, counts(store.Filter{}).Messages)
	lap("a merge")
}

// Removals by another process are counted, and an index whose connection was broken is
// rebuilt.
func TestEngine_RemovalsByAnotherProcess(t *testing.T) {
	srv := fresh(t)
	js := connect(t, srv)
	name := newStore(t, js)
	s := openStore(t, js, name)
	var ms []store.Message
	for i := range 100 {
		ms = append(ms, newMessage(strconv.Itoa(i)))
	}
	require.NoError(t, s.Put(t.Context(), "q", ms...))
	other := openStore(t, connect(t, srv), name)
	count := func(s *weirjs.Engine) int {
		c, err := s.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		return c.Messages
	}
	require.Equal(t, 100, count(other))
	taken, err := s.Take(t.Context(), "q", 40, time.Minute)
	require.NoError(t, err)
	var leases []store.Lease
	for _, l := range taken {
		leases = append(leases, l.Lease)
	}
	require.NoError(t, s.Done(t.Context(), leases...))
	require.Equal(t, 60, count(other))
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	for consumer := range stream.ListConsumers(t.Context()).Info() { // as after a fault: the client makes another one
		require.NoError(t, stream.DeleteConsumer(t.Context(), consumer.Name))
	}
	n, err := s.Purge(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 60, n)
	require.Zero(t, count(other))
}

// Law W3: the server forgets the name of a lock a day after its last lease. The fencing
// numbers of the name still only rise.
func TestLocksForgetNames(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	e, err := weirjs.New(t.Context(), js, weirjs.WithLogger(quiet()))
	require.NoError(t, err)
	defer e.Close()
	locks, ctx := e.Locks(), bounded(t)
	var last lock.Grant
	for range 3 {
		last, err = locks.Acquire(ctx, "booking-17", "a", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, locks.Extend(ctx, last, time.Minute))
		require.NoError(t, locks.Release(ctx, last))
	}
	stream, err := js.Stream(ctx, "weir")
	require.NoError(t, err)
	m, err := stream.GetLastMsgForSubject(ctx, "weir.store.weir.=lock.>")
	require.NoError(t, err)
	require.Equal(t, "24h0m0s", m.Header.Get(jetstream.MsgTTLHeader))
	require.NoError(t, stream.DeleteMsg(ctx, m.Sequence)) // as the server does then
	next, err := locks.Acquire(ctx, "booking-17", "b", 10*time.Second)
	require.NoError(t, err)
	require.Greater(t, next.Fence, last.Fence)
	m, err = stream.GetLastMsgForSubject(ctx, "weir.store.weir.=lock.>")
	require.NoError(t, err)
	require.Equal(t, "24h0m10s", m.Header.Get(jetstream.MsgTTLHeader))
	require.ErrorIs(t, locks.Extend(ctx, last, time.Minute), lock.ErrLost)
}
