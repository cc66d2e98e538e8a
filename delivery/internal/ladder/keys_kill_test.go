package ladder_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/strategies"
)

// mortal is the store of a process that is killed: nothing that it calls then arrives.
type mortal struct {
	store.Inspector

	mu       sync.RWMutex // held while a call runs: a call ends before the kill, or is refused
	isKilled bool         // guarded by mu
}

var errKilled = errors.New("killed")

// begin begins a call, which ends with mu.RUnlock if begin returns nil.
func (m *mortal) begin() error {
	m.mu.RLock()
	if m.isKilled {
		m.mu.RUnlock()
		return errKilled
	}
	return nil
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isKilled = true
}

func (m *mortal) wasKilled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.isKilled
}

func (m *mortal) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Put(ctx, queue, ms...)
}

func (m *mortal) HandOver(ctx context.Context, moves ...store.Move) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.HandOver(ctx, moves...)
}

func (m *mortal) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Take(ctx, queue, limit, lease)
}

func (m *mortal) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Claim(ctx, queue, f, p, lease)
}

func (m *mortal) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Extend(ctx, d, leases...)
}

func (m *mortal) Done(ctx context.Context, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Done(ctx, leases...)
}

func (m *mortal) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Release(ctx, delay, leases...)
}

func (m *mortal) Move(ctx context.Context, moves ...store.Move) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Move(ctx, moves...)
}

// calls are the calls of a function, which outlives its process.
type calls struct {
	mu        sync.Mutex
	last      map[string]int // by key: the last message that was called
	done      map[int]bool
	overtaken []string
}

func (c *calls) note(ctx context.Context, n int) {
	meta, _ := message.MetaFromContext(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.last[meta.Key]; ok && n < last {
		c.overtaken = append(c.overtaken, fmt.Sprintf("key %s: %d after %d", meta.Key, n, last))
	}
	c.last[meta.Key] = max(n, c.last[meta.Key])
}

// Workers are killed and started again at once, while messages of a queue wait in layers,
// behind others of their key, and in memory. No message of a key is called after a later
// one, and all are done.
func TestKeys_Kills(t *testing.T) {
	const keys, n = 50, 1000
	const kills = settle.MaxLapses - 1 // more could make a dead letter of a message that is in flight at each of them
	for name, gently := range map[string]bool{"killed": false, "stopped": true} {
		for round := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", name, round), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(round, 2))
					memory := memory.Open()
					for i := range n {
						m, err := leases.Encode(codec.JSON[int](), i, message.Meta{ID: strconv.Itoa(i), Key: strconv.Itoa(i % keys)})
						require.NoError(t, err)
						require.NoError(t, memory.Put(t.Context(), "work", m))
					}
					all := &calls{last: map[string]int{}, done: map[int]bool{}}
					for run := 0; len(all.done) < n; run++ {
						require.LessOrEqual(t, run, kills)
						ctx, stop := context.WithCancel(t.Context())
						s := &mortal{Inspector: memory}
						if run < kills {
							time.AfterFunc(time.Duration(random.IntN(2000))*time.Millisecond, func() {
								if !gently {
									s.kill()
								}
								stop()
							})
						}
						workOnKeys(ctx, t, s, all, stop, n)
						stop()
					}
					require.Empty(t, all.overtaken)
					left, err := memory.Queues(t.Context())
					require.NoError(t, err)
					require.Empty(t, left)
				})
			})
		}
	}
}

// workOnKeys is a worker until its process is killed, or all is done.
func workOnKeys(ctx context.Context, t *testing.T, s *mortal, all *calls, stop func(), n int) {
	options := []leases.SourceOption{leases.WithLease(3 * time.Second), leases.WithLogger(quiet)}
	l, err := ladder.New(ladder.Config[int]{
		Store: s, Codec: codec.JSON[int](), Main: "new", DeadLetters: "dead", Blocked: "blocked", MaxBlocked: 200, Options: options,
		Layers: []ladder.Layer{{Queue: "soon", Delay: 500 * time.Millisecond}, {Queue: "later", Delay: 2 * time.Second}},
	})
	require.NoError(t, err)
	call := asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
		meta, _ := message.MetaFromContext(ctx)
		all.note(ctx, i)
		time.Sleep(time.Duration(50+10*(i%20)) * time.Millisecond)
		if s.wasKilled() {
			return 0, errKilled
		}
		if i%20 == 0 && meta.Visit <= 1 || i%60 == 0 && meta.Visit <= 2 {
			return 0, errRefused
		}
		return i, nil
	})
	op := asyncop.UnorderedWaitWithRetry(call, time.Minute, 100, strategies.PolicyOf(strategies.NoRetry[int]()).Idempotent(),
		asyncop.WithFailureSink(l.Take), asyncop.WithLogger(quiet))
	sink := sinkOf(func(ms []message.Message[int]) error {
		if s.wasKilled() {
			return errKilled
		}
		all.mu.Lock()
		defer all.mu.Unlock()
		for _, m := range ms {
			all.done[m.Value] = true
		}
		if len(all.done) == n {
			stop()
		}
		return nil
	})
	first := leases.NewSource(s, "work", "dead", codec.JSON[int](), options...)
	_, err = delivery.Run(ctx, l.Source(first), op, sink, delivery.WithDrain(0), delivery.WithLogger(quiet))
	if !s.wasKilled() {
		require.NoError(t, err)
	}
}

// sinkOf is a sink.
type sinkOf func(ms []message.Message[int]) error

func (f sinkOf) PutAll(_ context.Context, ms []message.Message[int]) error { return f(ms) }
