package embedded_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
)

// silent dials a server. While it is deaf, the connection loses all answers.
type silent struct {
	switchable
	deaf   atomic.Bool
	losing atomic.Bool // whether answers are lost from the next commit of a transaction until the next read of a message
}

func (s *silent) Dial(network, address string) (net.Conn, error) {
	conn, err := s.switchable.Dial(network, address)
	return silentConn{conn, s}, err
}

type silentConn struct {
	net.Conn
	silent *silent
}

func (c silentConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.silent.deaf.Load() {
			return n, err
		}
	}
}

func (c silentConn) Write(b []byte) (int, error) {
	if c.silent.losing.Load() {
		switch {
		case bytes.Contains(b, []byte("Nats-Batch-Commit")):
			c.silent.deaf.Store(true)
		case bytes.Contains(b, []byte("$JS.API.STREAM.MSG.GET")) && c.silent.deaf.Swap(false):
			c.silent.losing.Store(false)
		}
	}
	return c.Conn.Write(b)
}

// connectSilent connects to a server through a silent.
func connectSilent(t *testing.T, srv *embedded.Server, opts ...jetstream.JetStreamOpt) (*silent, jetstream.JetStream) {
	t.Helper()
	dialer := &silent{}
	dialer.server.Store(srv)
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.SetCustomDialer(dialer), nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, opts...)
	require.NoError(t, err)
	return dialer, js
}

// Regression: Close took up to 20 s if servers did not answer.
func TestCloseWithServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	dialer, js := connectSilent(t, fresh(t))
	e, err := weirjs.New(t.Context(), js, weirjs.WithLogger(quiet()))
	require.NoError(t, err)
	var lease store.Lease
	for i := range 5 {
		require.NoError(t, e.Put(t.Context(), strconv.Itoa(i), newMessage("a")))
		taken, err := e.Take(t.Context(), strconv.Itoa(i), 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		lease = taken[0].Lease
	}
	dialer.deaf.Store(true)
	var calls sync.WaitGroup
	ctx := context.WithoutCancel(t.Context())
	calls.Go(func() { assert.Error(t, e.Done(ctx, lease)) })
	calls.Go(func() { // a call with many requests
		_, err := e.Take(ctx, "0", 1, time.Minute)
		assert.ErrorIs(t, err, store.ErrClosed)
	})
	begun := time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(begun), 8*time.Second, "twice what it waits for")
	calls.Wait()
}

// A request whose answer was lost fails after the timeout of the client, also if its
// caller would wait for longer.
func TestEngine_LostAnswerIsNotAwaited(t *testing.T) {
	t.Parallel()
	type things struct {
		*weirjs.Engine
		lease       store.Lease
		checkpoints checkpoint.Store
		output      checkpoint.Output[string]
	}
	for what, call := range map[string]func(ctx context.Context, s things) error{
		"put":    func(ctx context.Context, s things) error { return s.Put(ctx, "q", newMessage("b")) },
		"extend": func(ctx context.Context, s things) error { return s.Extend(ctx, time.Minute, s.lease) },
		"take": func(ctx context.Context, s things) error {
			_, err := s.Take(ctx, "another", 1, time.Minute)
			return err
		},
		"count": func(ctx context.Context, s things) error {
			_, err := s.Count(ctx, "another", store.Filter{})
			return err
		},
		"record": func(ctx context.Context, s things) error {
			_, err := s.Records(ctx, "kind", "", 1)
			return err
		},
		"lock": func(ctx context.Context, s things) error {
			_, err := s.Locks().Acquire(ctx, "lock", "me", time.Minute)
			return err
		},
		"checkpoint": func(ctx context.Context, s things) error {
			return s.checkpoints.Save(ctx, &checkpoint.Snapshot{ID: 1})
		},
		"checkpoints": func(ctx context.Context, s things) error {
			_, err := s.checkpoints.List(ctx)
			return err
		},
		"output": func(ctx context.Context, s things) error { return s.output.Write(ctx, "a") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dialer, js := connectSilent(t, fresh(t), jetstream.WithDefaultTimeout(time.Second))
			s := things{Engine: openStore(t, js, newStore(t, js))}
			require.NoError(t, s.Put(t.Context(), "q", newMessage("a")))
			taken, err := s.Take(t.Context(), "q", 1, time.Minute)
			require.NoError(t, err)
			require.Len(t, taken, 1)
			s.lease = taken[0].Lease
			stream := newStream(t, js, func(c *jetstream.StreamConfig) { *c = jscheckpoint.StreamConfig(c.Name) })
			s.checkpoints, err = jscheckpoint.Stores(js, stream, "g").Open(t.Context(), "p", 0)
			require.NoError(t, err)
			s.output = jscheckpoint.NewOutput(js, stream, stream+".out", codec.JSON[string]())
			dialer.deaf.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			failed := make(chan error, 1)
			go func() { failed <- call(ctx, s) }()
			select {
			case err := <-failed:
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, ctx.Err())
			case <-time.After(time.Minute):
				t.Error("the call waits for an answer that was lost")
				cancel()
				_ = <-failed // it ends
			}
		})
	}
}

// A removal whose answer was lost has taken effect: its lease is not lost, and a purge
// counts the message.
func TestEngine_RemovalWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(s *weirjs.Engine, leases []store.Lease) error{
		"done": func(s *weirjs.Engine, leases []store.Lease) error { return s.Done(t.Context(), leases...) },
		"purge": func(s *weirjs.Engine, leases []store.Lease) error {
			n, err := s.Purge(t.Context(), "q", store.Filter{})
			assert.Equal(t, len(leases), n)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			dialer, js := connectSilent(t, fresh(t), jetstream.WithDefaultTimeout(5*time.Second))
			s := openStore(t, js, newStore(t, js))
			require.NoError(t, s.Put(t.Context(), "q", newMessage("a"), newMessage("b"), newMessage("c")))
			taken, err := s.Take(t.Context(), "q", 3, time.Minute)
			require.NoError(t, err)
			var leases []store.Lease
			for _, l := range taken {
				leases = append(leases, l.Lease)
			}
			_, err = s.Count(t.Context(), "q", store.Filter{}) // waits for all messages, so that the loss does not begin in the middle of one
			require.NoError(t, err)
			dialer.losing.Store(true)
			require.NoError(t, remove(s, leases))
			require.False(t, dialer.losing.Load(), "no answer was lost")
			require.ErrorAs(t, s.Done(t.Context(), leases...), new(*store.LeaseError), "in another call")
		})
	}
}
