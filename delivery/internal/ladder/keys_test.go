package ladder_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// journal is an ordered source, such as a partition of a log: it redelivers messages that
// were not acknowledged, in order.
type journal struct {
	mu    sync.Mutex
	from  []string
	acked map[string]bool
	at    int
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

func (j *journal) Receive(ctx context.Context, n int) (ms []message.Message[string], err error) {
	for {
		j.mu.Lock()
		for j.at < len(j.from) && len(ms) < n && !j.next.After(time.Now()) {
			if j.pace > 0 && j.at%5 == 4 {
				j.next = time.Now().Add(j.pace)
			}
			v := j.from[j.at]
			j.at++
			ms = append(ms, message.New(v, &message.Meta{ID: v, Key: keyOf(v)}, func(settlement message.Settlement) {
				j.mu.Lock()
				defer j.mu.Unlock()
				if settlement.Kind.IsSafe() {
					j.acked[v] = true
				}
			}))
		}
		j.mu.Unlock()
		if len(ms) > 0 {
			return ms, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// give delivers one more.
func (j *journal) give(v string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.from = append(j.from, v)
}

func (j *journal) Close(context.Context) error { return nil }

func blocking(s store.Store) ladder.Config[string] {
	c, _ := config()
	c.Store = s
	c.Blocked = "blocked"
	c.Layers[1].Delay = 5 * time.Minute
	c.Options = []leases.SourceOption{leases.WithLogger(slog.New(slog.DiscardHandler)), leases.WithMaxPoll(time.Second)}
	return c
}

// Law D4: with Blocked a message is not called before all earlier messages of its key are
// done or dead, whatever fails, even over kills; and other keys continue.
func TestKeys_Blocked(t *testing.T) {
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
	before := map[string]string{} // the previous message of the key
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
	ended, wrong, calls := map[string]bool{}, []string{}, 0
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
			if b := before[in]; b != "" && !ended[b] {
				wrong = append(wrong, in+" was called before "+b)
			}
			if calls == killAt && run < 6 {
				_ = s.Close() // the process is dead: its calls do not reach the store
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
				meta, _ := message.MetaFromContext(ctx)
				err := l.Take(ctx, f)
				if err == nil && meta.Visit >= 3 {
					mu.Lock()
					ended[f.Element] = true // dead
					if len(ended) == len(all) {
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
			ended[m.Value] = true
			done := len(ended) == len(all)
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
		done := len(ended) == len(all)
		mu.Unlock()
		if done || run > 20 {
			break
		}
		j = j.restarted()
	}
	require.Empty(t, wrong)
	require.Len(t, ended, len(all))
}

// At the bound the source of new messages is held back, and continues when some have
// left. A key whose message was purged from its layer is free again.
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

// Other keys, and messages without a key, continue meanwhile (law D4).
func TestKeys_OtherKeysContinue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		source := l.Source(&journal{from: []string{"a1", "a2", "b1", "a3", "b2"}, acked: map[string]bool{}})
		take(t, l, one(t, source))
		begun := time.Now()
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
		require.InDelta(t, time.Minute, time.Since(begun), float64(2*time.Second))
		require.NoError(t, source.Close(t.Context()))
	})
}

// stuck is a store whose Put into a queue waits, and fails then.
type stuck struct {
	*memory.Engine
	queue string
	fail  chan struct{}
}

func (s *stuck) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if queue == s.queue {
		<-s.fail
		return errRefused
	}
	return s.Engine.Put(ctx, queue, ms...)
}

func (s *stuck) HandOver(ctx context.Context, moves ...store.Move) error {
	if moves[0].Queue == s.queue {
		<-s.fail
		return errRefused
	}
	return s.Engine.HandOver(ctx, moves...)
}

// Law D4: a later message of a key is not put behind a message whose hand-over is not
// certain yet, since that may be redelivered.
func TestKeys_HandOverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		s := &stuck{memory, "1m", make(chan struct{})}
		l := build(t, blocking(s))
		j := &journal{from: []string{"a1", "a2", "b1"}, acked: map[string]bool{}}
		source := l.Source(j)
		first := one(t, source)
		taken := make(chan error)
		go func() {
			taken <- l.Take(message.NewContext(t.Context(), first), exhausted(first.Value))
		}()
		synctest.Wait()
		other := one(t, source)
		require.Equal(t, "b1", other.Value)
		other.Ack()
		j.give("a1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, j.acked["a1"], "law D1")
		close(s.fail)
		require.ErrorIs(t, <-taken, errRefused)
		first.Nack(0)
		require.Zero(t, l.Keys())
		require.NoError(t, source.Close(t.Context()))

		source = build(t, blocking(memory)).Source(j.restarted())
		for _, want := range []string{"a1", "a2"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			m.Ack()
		}
		require.NoError(t, source.Close(t.Context()))
	})
}

// late is a store whose first Put takes effect, and returns an error much later.
type late struct {
	*memory.Engine
	put  atomic.Bool
	fail chan struct{}
}

func (s *late) Put(ctx context.Context, queue string, ms ...store.Message) (err error) {
	err = s.Engine.Put(ctx, queue, ms...)
	if s.put.Swap(true) {
		return err
	}
	<-s.fail
	return errRefused
}

func (s *late) HandOver(ctx context.Context, moves ...store.Move) (err error) {
	err = s.Engine.HandOver(ctx, moves...)
	if s.put.Swap(true) {
		return err
	}
	<-s.fail
	return errRefused
}

// Law D4: a hand-over that fails after its message has returned and waits in the next
// layer does not free the key.
func TestKeys_HandOverFailsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		s := &late{Engine: memory, fail: make(chan struct{})}
		l := build(t, blocking(s))
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := l.Source(j)
		first := one(t, source)
		taken := make(chan error)
		go func() {
			taken <- l.Take(message.NewContext(t.Context(), first), exhausted(first.Value))
		}()
		again := one(t, source) // a minute later
		require.Equal(t, 2, again.Meta().Visit)
		take(t, l, again) // into the next layer
		close(s.fail)
		require.ErrorIs(t, <-taken, errRefused)
		first.Nack(0)
		j.give("a2")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded, "a1 waits for its third visit")
		for _, want := range []string{"a1", "a2"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			m.Ack()
		}
		require.NoError(t, source.Close(t.Context()))
	})
}

// A hand-over that fails when its message is settled frees the key for messages parked
// meanwhile.
func TestKeys_HandOverFailsAfterTheSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		s := &stuck{memory, "1m", make(chan struct{})}
		l := build(t, blocking(s))
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := l.Source(j)
		first := one(t, source)
		taken := make(chan error)
		go func() {
			taken <- l.Take(message.NewContext(t.Context(), first), exhausted(first.Value))
		}()
		synctest.Wait()
		first.Nack(0)
		j.give("a2")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, j.acked["a2"], "it is parked")
		close(s.fail)
		require.ErrorIs(t, <-taken, errRefused)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ms, err := source.Receive(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, "a2", ms[0].Value)
		ms[0].Ack()
		require.NoError(t, source.Close(t.Context()))
	})
}

// halfListed is a store whose first List of a queue fails.
type halfListed struct {
	*memory.Engine
	queue string
}

func (h *halfListed) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if queue == h.queue {
		h.queue = ""
		return nil, errRefused
	}
	return h.Engine.List(ctx, queue, f, p)
}

// Messages of an earlier process are counted once, even if a message is in two layers,
// because the process was killed between a hand-over and the acknowledgement, and even if
// the first count fails. So new messages are received when the others are done.
func TestKeys_MessagesOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(&halfListed{memory, "1h"})
		c.MaxBlocked = 2
		put(t, memory, "blocked", "c1", "c2")
		put(t, memory, "1m", "a1")
		put(t, memory, "1h", "a1")
		source := build(t, c).Source(&journal{from: []string{"b1"}, acked: map[string]bool{}})
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		_, err := source.Receive(t.Context(), 1)
		require.ErrorIs(t, err, errRefused)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []string
		for range 4 {
			ms, err := source.Receive(ctx, 1)
			require.NoError(t, err, "after %v", got)
			got = append(got, ms[0].Value)
			if ms[0].Value != "c1" { // c2 stays behind it
				ms[0].Ack()
			}
		}
		slices.Sort(got)
		require.Equal(t, []string{"a1", "a1", "b1", "c1"}, got)
	})
}

// Laws D1, D2: if the source returns a message that is already in the store, it is
// delivered once, both while it waits and while it is called.
func TestKeys_MessageThatIsReceivedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		put(t, memory, "1m", "a1")
		put(t, memory, "blocked", "a2", "a3")
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := build(t, c).Source(j)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		for _, want := range []string{"a1", "a2", "a3"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			j.give(want)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err := source.Receive(ctx, 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			require.True(t, j.acked[want])
			m.Ack()
		}
		j.give("b1")
		require.Equal(t, "b1", one(t, source).Value)
	})
}

// Laws D4, D5: messages that cannot be parked hold back new messages, but not messages of
// layers, whose end makes room.
func TestKeys_MessageThatCannotBeParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		f := &faulty{Engine: memory, queue: "blocked"}
		f.broken.Store(true)
		l := build(t, blocking(f))
		source := l.Source(&journal{from: []string{"b1", "a1", "a2", "c1"}, acked: map[string]bool{}})
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		take(t, l, one(t, source))
		take(t, l, one(t, source))
		var got []string
		failures := 0
		for len(got) < 4 {
			begun := time.Now()
			ms, err := source.Receive(t.Context(), 1)
			if err != nil {
				require.ErrorIs(t, err, errRefused)
				require.LessOrEqual(t, time.Since(begun), time.Second)
				failures++
				time.Sleep(time.Second)
			}
			for _, m := range ms {
				got = append(got, m.Value)
				m.Ack()
			}
			if len(got) == 2 {
				f.broken.Store(false)
			}
		}
		require.Positive(t, failures)
		require.ElementsMatch(t, []string{"a1", "b1"}, got[:2])
		require.ElementsMatch(t, []string{"a2", "c1"}, got[2:])
	})
}

// The order of a key holds for one source: a second source of the ladder is refused, and
// another worker on its queues is reported.
func TestKeys_TwoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		source := l.Source(nil)
		require.Panics(t, func() { l.Source(nil) })
		require.NoError(t, source.Close(t.Context()))
		source = l.Source(nil)
		require.NoError(t, source.Close(t.Context()))

		var log bytes.Buffer
		defer slog.SetDefault(slog.Default())
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		put(t, memory, "blocked", "a1", "a2")
		first, second := build(t, blocking(memory)).Source(nil), build(t, blocking(memory)).Source(nil)
		require.Equal(t, "a1", one(t, first).Value)
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		_, err := second.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotContains(t, log.String(), "another worker", "it may be a lease of one that has died")
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = second.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Contains(t, log.String(), "another worker")
		require.NoError(t, first.Close(t.Context()))
		require.NoError(t, second.Close(t.Context()))
	})
}

// A nacked message is redelivered before later messages of its key, and does not count
// for MaxBlocked.
func TestKeys_Nack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		c.MaxBlocked = 1
		values := make(chan string, 2)
		values <- "a1"
		values <- "a2"
		l := build(t, c)
		source := l.Source(channel.NewSource(values, func(v string) *message.Meta { return &message.Meta{ID: v, Key: keyOf(v)} }))
		for range 3 {
			m := one(t, source)
			require.Equal(t, "a1", m.Value)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err := source.Receive(ctx, 1)
			require.ErrorIs(t, err, context.DeadlineExceeded, "a2 is held")
			cancel()
			m.Nack(0)
		}
		for _, want := range []string{"a1", "a2"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			m.Ack()
		}
		require.Zero(t, l.Keys(), "a key takes memory as long as it has messages")
		require.NoError(t, source.Close(t.Context()))
	})
}

// looks counts how often a queue is looked into.
type looks struct {
	*memory.Engine
	queue string
	n     int
}

func (l *looks) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if queue == l.queue {
		l.n++
	}
	return l.Engine.List(ctx, queue, f, p)
}

// pages counts calls of List for messages of a key that may return all of its messages.
type pages struct {
	*memory.Engine
	all int
}

func (p *pages) List(ctx context.Context, queue string, f store.Filter, page store.Page) ([]store.Entry, error) {
	if queue == "blocked" && f.Key != "" && page.Until == 0 {
		p.all++
	}
	return p.Engine.List(ctx, queue, f, page)
}

// Taking the parked messages of a key does not read all of them each time: that would
// take the square of their number.
func TestParkedMessagesAreNearEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		p := &pages{Engine: memory}
		const n = 50
		for i := range n {
			put(t, memory, "blocked", fmt.Sprintf("a%02d", i), fmt.Sprintf("b%02d", i))
		}
		source := build(t, blocking(p)).Source(nil)
		for range 2 * n {
			one(t, source).Ack()
		}
		require.LessOrEqual(t, p.all, 6, "the first of a key, and that there is none")
		require.NoError(t, source.Close(t.Context()))
	})
}

// They are not all read either if many messages of other keys are between them.
func TestParkedMessagesThatAreFarFromEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		put(t, memory, "blocked", "a1")
		for i := range 600 {
			put(t, memory, "blocked", fmt.Sprintf("b%03d", i))
		}
		put(t, memory, "blocked", "a2")
		source := build(t, blocking(memory)).Source(nil)
		firsts := map[string]message.Message[string]{} // of the keys, in any order
		for range 2 {
			m := one(t, source)
			firsts[m.Value] = m
		}
		require.Contains(t, firsts, "b000")
		firsts["a1"].Ack()
		require.Equal(t, "a2", one(t, source).Value)
		require.NoError(t, source.Close(t.Context()))
	})
}

// Law D3: a parked message that is nacked is redelivered when its delay is over, and is
// not looked for all the time until then.
func TestKeys_ParkedMessageIsNacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		s := &looks{Engine: memory, queue: "blocked"}
		c := blocking(s)
		put(t, memory, "blocked", "a1", "a2")
		source := build(t, c).Source(nil)
		m := one(t, source)
		require.Equal(t, "a1", m.Value)
		m.Nack(time.Minute)
		begun, before := time.Now(), s.n
		m = one(t, source)
		require.Equal(t, "a1", m.Value)
		require.InDelta(t, time.Minute, time.Since(begun), float64(2*time.Second))
		require.GreaterOrEqual(t, time.Since(begun), time.Minute)
		require.Less(t, s.n-before, 10)
		m.Ack()
		require.Equal(t, "a2", one(t, source).Value)
		require.NoError(t, source.Close(t.Context()))
	})
}

// put stores messages of keys.
func put(t *testing.T, s store.Store, queue string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m, err := leases.Encode(codec.JSON[string](), id, message.Meta{ID: id, Key: keyOf(id)})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), queue, m))
	}
}

// noExtend is a store whose leases cannot be extended.
type noExtend struct{ *memory.Engine }

func (noExtend) Extend(context.Context, time.Duration, ...store.Lease) error { return errRefused }

// Law D2: a message whose lease ends while it is called is still one, and the next of its
// key comes when it is done: for its first visit, since it has only waited.
func TestKeys_LeaseThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(noExtend{memory})
		l := build(t, c)
		source := l.Source(nil)
		put(t, memory, "new", "a1")
		take(t, l, one(t, source))
		put(t, memory, "new", "a2")
		m := one(t, source)
		require.Equal(t, "a1", m.Value)
		require.Equal(t, 2, m.Meta().Visit)
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second) // not when a lease ends
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		m.Ack()
		m = one(t, source)
		require.Equal(t, "a2", m.Value)
		require.Equal(t, 1, m.Meta().Visit)
		m.Ack()
		require.NoError(t, source.Close(t.Context()))
		for _, queue := range []string{"new", "1m", "blocked"} {
			counts, err := memory.Count(t.Context(), queue, store.Filter{})
			require.NoError(t, err)
			require.Zero(t, counts.Messages, queue)
		}
	})
}

// Parked messages that a person has purged take no room of MaxBlocked.
func TestBlockedMessagesArePurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		c.MaxBlocked = 3
		put(t, memory, "1m", "a1")
		put(t, memory, "blocked", "a2", "a3", "a4")
		l := build(t, c)
		source := l.Source(&journal{from: []string{"b1"}, acked: map[string]bool{}})
		m := one(t, source)
		require.Equal(t, "a1", m.Value)
		n, err := memory.Purge(t.Context(), "blocked", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 3, n)
		m.Ack()
		m = one(t, source)
		require.Equal(t, "b1", m.Value)
		m.Ack()
		require.Zero(t, l.Keys())
		require.NoError(t, source.Close(t.Context()))
	})
}

// The end of the first source waits for parked messages without predecessors.
func TestKeys_EndWaitsForParkedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		put(t, memory, "blocked", "a1")
		source := build(t, blocking(memory)).Source(messages(0))
		one(t, source).Nack(time.Minute)
		m := one(t, source)
		require.Equal(t, "a1", m.Value)
		m.Ack()
		_, err := source.Receive(t.Context(), 1)
		require.Equal(t, io.EOF, err)
		require.NoError(t, source.Close(t.Context()))
	})
}

// Law D4: a message that is late in its layer, because others use its bound, still
// precedes later messages of its key.
func TestKeys_MessageThatIsLateInItsLayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		c.Layers[0].MaxConcurrent = 1
		put(t, memory, "1m", "b1", "a1")
		put(t, memory, "blocked", "a2")
		source := build(t, c).Source(nil)
		first := one(t, source)
		require.Equal(t, "b1", first.Value)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		first.Ack()
		for _, want := range []string{"a1", "a2"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			m.Ack()
		}
		require.NoError(t, source.Close(t.Context()))
	})
}

// Regression (law D4): with a first source, a key has one message in flight of both
// sources, and the waiting messages of both are bounded. The queue's own messages did not
// obey that.
func TestKeys_OwnMessagesBesideAFirstSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		c.MaxBlocked = 5
		l := build(t, c)
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := l.Source(j)
		none := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			ms, err := source.Receive(ctx, 1)
			require.Empty(t, ms)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		first := one(t, source)
		require.Equal(t, "a1", first.Value)
		put(t, memory, "new", "a2", "b1")
		other := one(t, source)
		require.Equal(t, "b1", other.Value)
		none()
		other.Ack()
		first.Ack()
		second := one(t, source)
		require.Equal(t, "a2", second.Value)
		j.give("a3")
		none() // a3 is read before the others come
		for i := range 20 {
			put(t, memory, "new", "a"+strconv.Itoa(i+4))
		}
		none() // the source holds them behind a2
		require.InDelta(t, c.MaxBlocked, l.Size(), 1)
		second.Ack()
		for i := range 21 {
			m := one(t, source)
			require.Equal(t, "a"+strconv.Itoa(i+3), m.Value)
			m.Ack()
		}
		require.NoError(t, source.Close(t.Context()))
		require.True(t, j.acked["a1"] && j.acked["a3"])
		counts, err := memory.Count(t.Context(), "new", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
	})
}

// Law D4: the same over a kill: the queue delivers first what the worker before has
// taken, also beside a first source.
func TestKeys_OwnMessagesThatAKilledWorkerHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		put(t, memory, "new", "a1", "a2", "b1")
		_, err := memory.Take(t.Context(), "new", 1, 10*time.Second)
		require.NoError(t, err)
		source := build(t, blocking(memory)).Source(&journal{from: []string{"c1"}, acked: map[string]bool{}})
		for _, want := range []string{"c1", "a1", "a2", "b1"} {
			m := one(t, source)
			require.Equal(t, want, m.Value)
			m.Ack()
		}
		require.NoError(t, source.Close(t.Context()))
	})
}

// A message that looks like a redelivery, since its id waits in a layer, is not dropped
// in silence: it may be another message.
func TestKeys_MessageThatLooksLikeARedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		c := blocking(memory)
		var log bytes.Buffer
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		l := build(t, c)
		j := &journal{from: []string{"a1"}, acked: map[string]bool{}}
		source := l.Source(j)
		take(t, l, one(t, source))
		require.Empty(t, log.String())
		j.acked["a1"] = false
		j.give("a1")
		require.Equal(t, 2, one(t, source).Meta().Visit)
		require.True(t, j.acked["a1"])
		require.NoError(t, source.Close(t.Context()))
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "id=a1")
	})
}

// Law W5: a later put under the id of a message that waits in a layer is another message.
// It waits behind it.
func TestKeys_SecondPutUnderTheIDOfAWaitingMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, memory := config()
		l := build(t, blocking(memory))
		parked := func() int {
			n, err := memory.Count(t.Context(), "blocked", store.Filter{})
			require.NoError(t, err)
			return n.Messages
		}
		source := l.Source(nil)
		putRaw(t, memory, "new", func(*message.Meta) {}, "a1")
		take(t, l, one(t, source))
		synctest.Wait() // it is out of the queue
		putRaw(t, memory, "new", func(*message.Meta) {}, "a1")
		nothing(t, source)
		require.Equal(t, 1, parked())
		first := one(t, source)
		require.Equal(t, 2, first.Meta().Visit)
		first.Ack()
		second := one(t, source)
		require.Equal(t, 1, second.Meta().Visit)
		require.NotEqual(t, first.Meta().Put, second.Meta().Put)
		second.Ack()
		require.NoError(t, source.Close(t.Context()))
	})
}

// Laws D1, D2: a new message with the id of a message that waits in a layer is a
// redelivery, unless it has had a later visit. Then another worker, which keeps no order,
// has taken it from the layer: it is parked behind the waiting messages.
func TestKeys_LaterVisitOfAWaitingMessage(t *testing.T) {
	again := func(visit int) func(m *message.Meta) { // of one put, merged once before
		return func(m *message.Meta) { m.Visit, m.Merges, m.Put = visit, 1, "first//1" }
	}
	for how, failsHere := range map[string]bool{"handed over": true, "found after a restart": false} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, released %v", how, back), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, memory := config()
					l := build(t, blocking(memory))
					parked := func() int {
						n, err := memory.Count(t.Context(), "blocked", store.Filter{})
						require.NoError(t, err)
						return n.Messages
					}
					if !failsHere {
						putRaw(t, memory, "1m", again(1), "a1")
					}
					source := l.Source(nil)
					if failsHere {
						putRaw(t, memory, "new", again(0), "a1")
						take(t, l, one(t, source))
						synctest.Wait() // it is out of the queue
					}
					if back || !failsHere {
						m := one(t, source)
						require.Equal(t, 2, m.Meta().Visit)
						m.Nack(time.Hour)
						synctest.Wait()
					}
					if !failsHere && !back { // the source finds it in its layer, with its delay
						require.NoError(t, source.Close(t.Context()))
						source = l.Source(nil)
						nothing(t, source)
					}
					putRaw(t, memory, "new", again(0), "a1")
					nothing(t, source)
					require.Zero(t, parked(), "a redelivery is not called again")
					putRaw(t, memory, "new", again(1), "a1")
					nothing(t, source)
					require.Equal(t, 1, parked(), "a later visit is not taken for a redelivery")
					require.NoError(t, source.Close(t.Context()))
				})
			})
		}
	}
}
