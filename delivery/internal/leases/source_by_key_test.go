package leases_test

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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// tappedByKey is a store whose TakeByKey calls before and after.
type tappedByKey struct {
	*memory.Engine
	done   func() // called before Done
	freed  func() // called after Release
	before func(ctx context.Context, queue string)
	after  func(queue string) error // an error is returned together with the messages
}

func (s *tappedByKey) TakeByKey(
	ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration,
) (taken []store.Leased, next string, err error) {
	if s.before != nil {
		s.before(ctx, queue)
	}
	taken, next, err = s.Engine.TakeByKey(ctx, queue, r, limit, lease)
	if err == nil && s.after != nil {
		err = s.after(queue)
	}
	return taken, next, err
}

func (s *tappedByKey) Done(ctx context.Context, leases ...store.Lease) error {
	if s.done != nil {
		s.done()
	}
	return s.Engine.Done(ctx, leases...)
}

func (s *tappedByKey) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	err := s.Engine.Release(ctx, delay, leases...)
	if s.freed != nil {
		s.freed()
	}
	return err
}

// byKeySource returns a source of a queue with at most most messages of a key in flight.
func byKeySource(s *tappedByKey, queue string, k *leases.KeysInFlight, most int) *leases.Source[string] {
	return leases.NewSource(s, queue, "dead", codec.JSON[string](), leases.WithLease(9*time.Second), quiet,
		leases.WithKeyRounds(s, most), leases.WithKeysInFlight(k))
}

func putKey(t *testing.T, s store.Store, queue, key string, ids ...string) {
	for _, id := range ids {
		m := store.Message{Meta: message.Meta{ID: id, Key: key}, Payload: []byte(strconv.Quote(id))}
		require.NoError(t, s.Put(t.Context(), queue, m))
	}
}

// A store may return an error after it has leased messages, for example if it does not
// know the result of a commit. These messages are not in flight.
func TestKeysInFlight_MessagesWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errDown
		engine := &tappedByKey{Engine: memory.Open(), after: func(string) error { return failure }}
		putKey(t, engine, "q", "ann", "a")
		s := byKeySource(engine, "q", leases.NewKeysInFlight(), 1)
		_, err := s.Receive(t.Context(), 1)
		require.ErrorIs(t, err, errDown)
		failure = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ms, err := s.Receive(ctx, 1)
		require.NoError(t, err, "the message is due when its lease ends")
		require.Equal(t, "a", ms[0].Meta().ID)
		ms[0].Ack()
		require.NoError(t, s.Close(t.Context()))
	})
}

// A message counts until its settlement is recorded, since the store counts its lease. So
// the next message of its key is taken at once after that, and is not looked for before.
func TestKeysInFlight_UntilTheSettlementIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		begun := make(chan time.Time, 1)
		takes := 0
		engine := &tappedByKey{Engine: memory.Open()}
		engine.done = func() { <-hang }
		engine.before = func(context.Context, string) { takes++ }
		putKey(t, engine, "q", "ann", "a", "b")
		s := byKeySource(engine, "q", leases.NewKeysInFlight(), 1)
		ms, err := s.Receive(t.Context(), 2)
		require.NoError(t, err)
		require.Len(t, ms, 1)
		received := make(chan error, 1)
		go func() { // ends with the second message
			ms, err := s.Receive(t.Context(), 2)
			begun <- time.Now()
			if err == nil {
				ms[0].Ack()
			}
			received <- err
		}()
		synctest.Wait()
		before := takes
		ms[0].Ack()
		synctest.Wait()
		require.Equal(t, before, takes, "takes while the settlement is not recorded")
		now := time.Now()
		close(hang)
		require.NoError(t, <-received)
		require.Equal(t, now, <-begun, "the time at which the next message of the key was received")
		require.NoError(t, s.Close(t.Context()))
	})
}

// A message that is settled while Close releases it does not count any longer.
func TestKeysInFlight_SettledWhileTheSourceCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &tappedByKey{Engine: memory.Open()}
		putKey(t, engine, "q", "ann", "a")
		k := leases.NewKeysInFlight()
		s, other := byKeySource(engine, "q", k, 1), byKeySource(engine, "q", k, 1)
		ms, err := s.Receive(t.Context(), 1)
		require.NoError(t, err)
		engine.freed = ms[0].Ack
		require.NoError(t, s.Close(t.Context()))
		engine.freed = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ms, err = other.Receive(ctx, 1)
		require.NoError(t, err)
		ms[0].Ack()
		require.NoError(t, other.Close(t.Context()))
	})
}

// A take that does not return blocks only its own source.
func TestKeysInFlight_TakeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		engine := &tappedByKey{Engine: memory.Open(), before: func(_ context.Context, queue string) {
			if queue == "hanging" {
				<-hang
			}
		}}
		putKey(t, engine, "q", "ann", "a")
		k := leases.NewKeysInFlight()
		hanging, s := byKeySource(engine, "hanging", k, 1), byKeySource(engine, "q", k, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, err := hanging.Receive(ctx, 1)
			assert.ErrorIs(t, err, context.Canceled)
		}()
		synctest.Wait()
		limit, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		ms, err := s.Receive(limit, 1)
		if assert.NoError(t, err) {
			ms[0].Ack()
		}
		assert.NoError(t, s.Close(limit))
		cancel()
		close(hang)
		<-ended
		require.NoError(t, hanging.Close(t.Context()))
	})
}

// Two sources take messages of a key at the same time. One of them releases its message,
// and does not take it again before the other message is settled.
func TestKeysInFlight_TakesAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		takes := 0
		both := make(chan struct{})
		engine := &tappedByKey{Engine: memory.Open(), after: func(string) error {
			mu.Lock()
			takes++
			if takes == 2 {
				close(both)
			}
			mu.Unlock()
			<-both
			return nil
		}}
		putKey(t, engine, "q", "ann", "q")
		putKey(t, engine, "layer", "ann", "layer")
		k := leases.NewKeysInFlight()
		arrived := make(chan message.Message[string], 2)
		ctx, cancel := context.WithCancel(t.Context())
		var receiving sync.WaitGroup
		var sources []*leases.Source[string]
		for _, queue := range []string{"q", "layer"} {
			s := byKeySource(engine, queue, k, 1)
			sources = append(sources, s)
			receiving.Go(func() { // ends with ctx
				for {
					ms, err := s.Receive(ctx, 10)
					if err != nil {
						return
					}
					for _, m := range ms {
						arrived <- m
					}
				}
			})
		}
		first := <-arrived
		time.Sleep(5 * time.Second)
		require.Empty(t, arrived, "a message of the key is in flight")
		mu.Lock()
		before := takes
		mu.Unlock()
		require.Less(t, before, 200, "takes in 5 s: a source with a due message polls every 100 ms")
		first.Ack()
		second := <-arrived
		require.NotEqual(t, first.Meta().ID, second.Meta().ID)
		require.Equal(t, 1, second.Meta().Visit, "a release is not a visit")
		second.Ack()
		cancel()
		receiving.Wait()
		for _, s := range sources {
			require.NoError(t, s.Close(t.Context()))
		}
	})
}

// Another source that has left out a key looks again as soon as a message of the key is
// settled, although its engine reports no change.
func TestKeysInFlight_SettledMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &tappedByKey{Engine: memory.Open()}
		putKey(t, engine, "q", "k", "a")
		putKey(t, engine, "layer", "k", "b")
		shared := leases.NewKeysInFlight()
		s, other := byKeySource(engine, "q", shared, 1), byKeySource(engine, "layer", shared, 1)
		first, err := s.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.Len(t, first, 1)
		time.AfterFunc(1050*time.Millisecond, first[0].Ack)
		begun := time.Now()
		second, err := other.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.Len(t, second, 1)
		require.Equal(t, 1050*time.Millisecond, time.Since(begun))
		second[0].Ack()
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
	})
}

// The limit never keeps messages with a key from messages without a key.
func TestKeysInFlight_NoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &tappedByKey{Engine: memory.Open()}
		putKey(t, engine, "q", "", "a", "b", "c")
		s := byKeySource(engine, "q", leases.NewKeysInFlight(), 1)
		var got []message.Message[string]
		for len(got) < 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			ms, err := s.Receive(ctx, 10)
			cancel()
			require.NoError(t, err)
			got = append(got, ms...)
		}
		require.NoError(t, s.Close(t.Context()))
	})
}

// Three sources share counts. Takes fail, with messages, leases are lost while their
// messages are in flight, and messages are purged. At no time are more messages of a key
// in flight than the limit, and at the end every key can be taken again.
func TestKeysInFlight_Random(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomKeys(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func randomKeys(t *testing.T, r *rand.Rand) {
	const most, each = 2, 6
	queues, keys := []string{"q", "layer-1", "layer-2"}, []string{"ann", "bob", "cid"}
	var mu sync.Mutex // guards r, healthy and flying
	healthy := false
	flying := map[string]int{}
	below := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	isBad := func() bool {
		bad := below(10) == 0
		mu.Lock()
		defer mu.Unlock()
		return bad && !healthy
	}
	engine := &tappedByKey{
		Engine: memory.Open(),
		before: func(context.Context, string) { time.Sleep(time.Duration(below(5)) * time.Millisecond) },
		after: func(string) error {
			if isBad() {
				return errDown
			}
			return nil
		},
	}
	for _, queue := range queues {
		for _, key := range keys {
			for i := range each {
				putKey(t, engine, queue, key, fmt.Sprint(queue, key, i))
			}
		}
	}
	k := leases.NewKeysInFlight()
	ctx, cancel := context.WithCancel(t.Context())
	var receiving, calls sync.WaitGroup
	var sources []*leases.Source[string]
	call := func(m message.Message[string]) {
		key := m.Meta().Key
		mu.Lock()
		flying[key]++
		now := flying[key]
		mu.Unlock()
		assert.LessOrEqual(t, now, most, "messages of key %q in flight", key)
		calls.Go(func() { // ends with the message
			time.Sleep(time.Duration(1+below(200)) * time.Millisecond)
			mu.Lock()
			flying[key]--
			mu.Unlock()
			switch below(5) {
			case 0:
				m.Nack(time.Duration(below(100)) * time.Millisecond)
			case 1:
				m.Reject(errors.New("bad"))
			default:
				m.Ack()
			}
		})
	}
	for _, queue := range queues {
		s := byKeySource(engine, queue, k, most)
		sources = append(sources, s)
		receiving.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				ms, err := s.Receive(ctx, 1+below(10))
				if errors.Is(err, errDown) {
					time.Sleep(10 * time.Millisecond)
				}
				for _, m := range ms {
					call(m)
				}
			}
		})
	}
	for range 10 { // others take leases away
		time.Sleep(50 * time.Millisecond)
		queue := queues[below(len(queues))]
		list, err := engine.List(ctx, queue, store.Filter{}, store.Page{Max: 100})
		require.NoError(t, err)
		for i := range list {
			if !list[i].LeasedUntil.IsZero() && below(2) == 0 {
				lease := store.Lease{Queue: queue, Entry: strconv.FormatInt(list[i].Position, 10), Fence: list[i].Fence}
				require.NoError(t, engine.Release(ctx, 0, lease))
			}
		}
		if below(4) == 0 {
			_, err := engine.Purge(ctx, queue, store.Filter{Key: keys[below(len(keys))]})
			require.NoError(t, err)
		}
	}
	mu.Lock()
	healthy = true
	mu.Unlock()
	for _, key := range keys {
		for _, queue := range queues {
			putKey(t, engine, queue, key, fmt.Sprint("last", queue, key))
		}
	}
	time.Sleep(30 * time.Minute)
	for _, queue := range queues {
		n, err := engine.Count(ctx, queue, store.Filter{})
		require.NoError(t, err)
		require.Zero(t, n.Messages, "messages that were not delivered in %q", queue)
	}
	cancel()
	receiving.Wait()
	calls.Wait()
	for _, s := range sources {
		require.NoError(t, s.Close(t.Context()))
	}
}
