package ladder_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// journal is a source that has an order, such as a partition of a log: it delivers again what was not acknowledged, in order.
type journal struct {
	mu    sync.Mutex
	from  []string
	acked map[string]bool
	at    int
	ends  bool          // else it waits for more
	pace  time.Duration // after five messages
	next  time.Time
}

func keyOf(v string) string { return v[:1] }

func (j *journal) restarted() *journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := &journal{acked: j.acked, pace: j.pace}
	for _, v := range j.from {
		if !j.acked[v] {
			n.from = append(n.from, v)
		}
	}
	return n
}

func (j *journal) Receive(ctx context.Context, n int) (ms []delivery.Message[string], err error) {
	for {
		j.mu.Lock()
		for j.at < len(j.from) && len(ms) < n && !j.next.After(time.Now()) {
			if j.pace > 0 && j.at%5 == 4 {
				j.next = time.Now().Add(j.pace)
			}
			v := j.from[j.at]
			j.at++
			ms = append(ms, delivery.New(v, &delivery.Meta{ID: v, Key: keyOf(v)}, func(verdict delivery.Verdict) {
				j.mu.Lock()
				defer j.mu.Unlock()
				if verdict.Kind == delivery.Acked {
					j.acked[v] = true
				}
			}))
		}
		ended := j.ends && j.at == len(j.from)
		j.mu.Unlock()
		switch {
		case len(ms) > 0:
			return ms, nil
		case ended:
			return nil, io.EOF
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

func (j *journal) Close(context.Context) error { return nil }

func blocking(s store.Store) ladder.Config[string] {
	c, _ := config()
	c.Store = s
	c.Blocked = "blocked"
	c.Layers[1].Delay = 5 * time.Minute
	c.Options = []store.SourceOption{store.WithLogger(slog.New(slog.DiscardHandler)), store.WithMaxPoll(time.Second)}
	return c
}

// Law D4, Q38: with Blocked a message is not called before all earlier ones of its key are done or dead, whatever fails, also
// over kills; and other keys go on.
func TestAKeyIsBlocked(t *testing.T) {
	seeds := uint64(2)
	if s := os.Getenv("WEIR_SEEDS"); s != "" {
		seeds, _ = strconv.ParseUint(s, 10, 64)
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { blockKeys(t, seed) }) })
	}
}

func blockKeys(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	_, memory := config()
	var all []string
	failures := map[string]int{}
	before := map[string]string{} // the earlier one of the key
	last := map[string]string{}
	for i := range 90 {
		v := fmt.Sprintf("%c%03d", 'a'+rune(random.IntN(6)), i)
		all = append(all, v)
		if random.IntN(10) < 3 {
			failures[v] = 1 + random.IntN(4) // three are too many
		}
		before[v], last[keyOf(v)] = last[keyOf(v)], v
	}
	var mu sync.Mutex
	over, wrong, calls := map[string]bool{}, []string{}, 0
	j := (&journal{from: all, acked: map[string]bool{}, pace: 20 * time.Second}).restarted()
	for run := 0; ; run++ {
		s := memory.Reopen()
		l := build(t, blocking(s))
		source := l.Source(j)
		ctx, kill := context.WithCancel(t.Context())
		killAt := calls + 15 + random.IntN(30)
		call := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			mu.Lock()
			calls++
			if b := before[in]; b != "" && !over[b] {
				wrong = append(wrong, in+" was called before "+b)
			}
			if calls == killAt && run < 6 {
				_ = s.Close() // the process is gone: nothing that it does reaches the store
				kill()
			}
			fails := failures[in] > 0
			if fails {
				failures[in]--
			}
			mu.Unlock()
			select {
			case <-time.After(time.Duration(len(in)*int(in[3]-'0'+1)) * time.Second):
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
			if fails {
				return "", errRefused
			}
			return in, nil
		})
		op := asyncop.UnorderedWaitWithRetry(call, time.Hour, 20,
			strategies.PolicyOf(strategies.FixedDelay[string](1, time.Hour).RetryIfException(predicates.HasException)).WithMaxDelay(time.Second),
			asyncop.WithContext(ctx),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[string]) error {
				meta, _ := delivery.MetaFromContext(ctx)
				err := l.Take(ctx, f)
				if err == nil && meta.Visit >= 3 {
					mu.Lock()
					over[f.Element] = true // dead
					if len(over) == len(all) {
						kill()
					}
					mu.Unlock()
				}
				return err
			}))
		for m, err := range op.Messages(receive(ctx, source)) {
			if err != nil {
				break
			}
			mu.Lock()
			over[m.Value] = true
			done := len(over) == len(all)
			mu.Unlock()
			m.Ack()
			if done {
				break
			}
		}
		kill()
		_ = op.Wait()
		_ = source.Close(context.Background())
		mu.Lock()
		done := len(over) == len(all)
		mu.Unlock()
		if done || run > 20 {
			break
		}
		j = j.restarted()
	}
	require.Empty(t, wrong)
	require.Len(t, over, len(all))
}

// At the bound the source of new messages is held back, and goes on when some have left. A key whose message was purged from
// its layer is free again.
func TestBlockedMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		c.MaxBlocked = 5
		l := build(t, c)
		all := make([]string, 30)
		for i := range all {
			all[i] = fmt.Sprintf("a%03d", i)
		}
		j := &journal{from: all, acked: map[string]bool{}}
		source := l.Source(j)
		m := one(t, source)
		require.Equal(t, "a000", m.Value)
		take(t, l, m)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		counts, err := memory.Count(t.Context(), "blocked", store.Filter{})
		require.NoError(t, err)
		require.InDelta(t, 5, counts.Messages, 1)
		require.Equal(t, counts.Messages+1, j.at, "no more were received")

		n, err := memory.Purge(t.Context(), "1m", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		begun := time.Now()
		for i, v := range all[1:] {
			m := one(t, source)
			require.Equal(t, v, m.Value, "message %d", i)
			require.Equal(t, 1, max(1, m.Meta().Visit))
			m.Ack()
		}
		require.Less(t, time.Since(begun), 3*time.Minute)
		require.NoError(t, source.Close(t.Context()))
	})
}

// Other keys, and messages without one, go on meanwhile (law D4).
func TestOtherKeysGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		source := l.Source(&journal{from: []string{"a1", "a2", "b1", "a3", "b2"}, acked: map[string]bool{}})
		take(t, l, one(t, source))
		var got []string
		for range 2 {
			m := one(t, source)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"b1", "b2"}, got)
		for range 3 {
			m := one(t, source)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"b1", "b2", "a1", "a2", "a3"}, got)
		require.NoError(t, source.Close(t.Context()))
	})
}
