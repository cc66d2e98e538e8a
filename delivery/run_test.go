package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// list is a source of numbers. Nacked numbers are redelivered. It ends when all are
// acknowledged or rejected, unless endless is set.
type list struct {
	delivery.Source[int]
	endless chan int

	mu          sync.Mutex
	settlements map[int][]message.Settlement
	received    int
	failures    []error // of the next calls of Receive
	closed      bool

	deliveryOf func(i int) message.Delivery // of a number; nil for numbers without a delivery
}

func newList(n int, endless bool) *list {
	c := make(chan int, n)
	for i := range n {
		c <- i
	}
	l := &list{endless: c, settlements: map[int][]message.Settlement{}}
	if !endless {
		close(c)
	}
	l.Source = channel.NewSource(c, func(i int) *message.Meta { return &message.Meta{ID: strconv.Itoa(i)} })
	return l
}

func (l *list) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	l.mu.Lock()
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		l.mu.Unlock()
		return nil, err
	}
	l.mu.Unlock()
	ms, err := l.Source.Receive(ctx, n)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.received += len(ms)
	for i, m := range ms {
		meta := m.Meta()
		ms[i] = message.New(m.Value, &meta, func(v message.Settlement) {
			l.mu.Lock()
			l.settlements[m.Value] = append(l.settlements[m.Value], v)
			l.mu.Unlock()
			m.Settle(v)
		})
		if l.deliveryOf != nil {
			ms[i] = message.Attach(ms[i], l.deliveryOf(m.Value))
		}
	}
	return ms, err
}

func (l *list) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.Source.Close(ctx) // messages in memory may be lost here
	return nil
}

func (l *list) of(i int) []message.Settlement {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.settlements[i])
}

func (l *list) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received
}

// sinkFunc is a sink.
type sinkFunc func(ctx context.Context, ms []message.Message[string]) error

func (f sinkFunc) PutAll(ctx context.Context, ms []message.Message[string]) error { return f(ctx, ms) }

// collected is a sink that keeps what it gets.
type collected struct {
	mu     sync.Mutex
	values []string
	sizes  []int
}

func (c *collected) PutAll(_ context.Context, ms []message.Message[string]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sizes = append(c.sizes, len(ms))
	for _, m := range ms {
		c.values = append(c.values, m.Value)
	}
	return nil
}

var (
	quiet    = slog.New(slog.DiscardHandler)
	silently = delivery.WithLogger(quiet)
)

// operator calls f, and drops what fails.
func operator(f func(ctx context.Context, i int) (string, error), opts ...asyncop.Option) *asyncop.AsyncWaitOperator[int, string] {
	return asyncop.UnorderedWait(asyncop.Blocking(f), time.Hour, 10,
		slices.Concat([]asyncop.Option{asyncop.WithLogger(quiet), asyncop.WithFailureSink(taken)}, opts)...)
}

// taken is a failure sink that takes everything.
func taken(context.Context, asyncop.Failure[int]) error { return nil }

func itoa(_ context.Context, i int) (string, error) { return strconv.Itoa(i), nil }

// Regression (law W2): the call for a result that the sink can never take was repeated
// every 10 s for ever, and other results in its batch were delayed.
func TestRun_SinkThatCanNeverTakeAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, good := newList(20, false), &collected{}
		calls := 0
		sink := sinkFunc(func(ctx context.Context, ms []message.Message[string]) error {
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return len(m.Value) == 1 }) {
				return fmt.Errorf("too large: %w", message.ErrRefused)
			}
			return good.PutAll(ctx, ms)
		})
		op := operator(func(_ context.Context, i int) (string, error) {
			calls++
			return strconv.Itoa(i), nil
		}, asyncop.WithMaxConcurrentCalls(1))
		begun := time.Now()
		s, err := delivery.Run(t.Context(), source, op, sink, silently, delivery.WithFloodGuard(1, 1))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 20, Done: 10, Rejected: 10}, withoutTime(s))
		require.Len(t, good.values, 10)
		require.Equal(t, 20, calls)
		require.ErrorIs(t, source.of(3)[0].Err, message.ErrRefused)
		require.Less(t, time.Since(begun), time.Second)
	})
}

// withoutTime is a summary without the time.
func withoutTime(s delivery.Summary) delivery.Summary {
	s.Elapsed = 0
	return s
}

func TestWithBatch_ToTheEndOfTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, sink := newList(500, false), &collected{}
		op := operator(func(ctx context.Context, i int) (string, error) {
			if i%10 == 0 {
				return "", errors.New("not this one")
			}
			return itoa(ctx, i)
		})
		summary, err := delivery.Run(t.Context(), source, op, sink, delivery.WithBatch(32), silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 500, Done: 450, HandedOver: 50}, withoutTime(summary))
		require.Len(t, sink.values, 450)
		require.LessOrEqual(t, slices.Max(sink.sizes), 32)
		require.True(t, source.closed)
		require.NoError(t, op.Wait())
		require.ErrorContains(t, source.of(10)[0].Err, "not this one")
	})
}

// Law D1: a message is acknowledged when the sink has returned, and not before.
func TestRunAcknowledgesBehindTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(3, false)
		puts := 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			time.Sleep(time.Second)
			for i := range 3 {
				for _, v := range source.of(i) {
					require.NotEqual(t, strconv.Itoa(i), ms[0].Value, "%v before Put has returned", v)
				}
			}
			puts++
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, delivery.WithBatch(1), silently)
		require.NoError(t, err)
		require.Equal(t, 3, summary.Done)
		require.Equal(t, 3, puts)
		for i := range 3 {
			require.Equal(t, []message.Settlement{{Kind: message.Done}}, source.of(i), "law D2")
		}
	})
}

// Law D4: a message that the sink refuses does not delay others, even if the sink refuses
// the whole batch.
func TestRunWithAMessageThatTheSinkRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(300, false)
		begun := time.Now()
		done := map[string]time.Duration{}
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "150" }) && time.Since(begun) < 15*time.Second {
				return errors.New("150 is too long")
			}
			for _, m := range ms {
				done[m.Value] = time.Since(begun)
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 300, Done: 300}, withoutTime(summary))
		require.Len(t, done, 300)
		for value, at := range done {
			if value == "150" {
				require.InDelta(t, 22.75, at.Seconds(), 0.25, "the eighth wait is over; the first tries are not all at the same time")
			} else {
				require.Less(t, at, time.Second, value)
			}
		}
	})
}

// Up to 10,000 results are put at once, however many slots the operator has.
func TestRunPutsManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for slots, want := range map[int]int{10: 100, 1000: 1000, 20_000: 10_000} {
			source, most := newList(22_000, false), 0 // more than two puts, however many results the first has
			sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
				if most == 0 {
					time.Sleep(time.Second) // the other results arrive meanwhile
				}
				most = max(most, len(ms))
				return nil
			})
			op := asyncop.OrderedWait(asyncop.Blocking(itoa), 0, slots, asyncop.WithFailureSink(taken), asyncop.WithLogger(quiet))
			summary, err := delivery.Run(t.Context(), source, op, sink, silently)
			require.NoError(t, err)
			require.Equal(t, 22_000, summary.Done)
			require.Equal(t, want, most, "%d slots", slots)
		}
	})
}

// Law D4: a result that is refused among many costs some puts, and not one for each of
// them.
func TestRunWithARefusedResultAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, puts, got := newList(1000, false), 0, 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if puts++; puts == 1 {
				time.Sleep(time.Second) // the other results arrive meanwhile
			}
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "700" }) {
				return fmt.Errorf("too large: %w", message.ErrRefused)
			}
			got += len(ms)
			return nil
		})
		op := asyncop.OrderedWait(asyncop.Blocking(itoa), 0, 1000, asyncop.WithFailureSink(taken), asyncop.WithLogger(quiet))
		summary, err := delivery.Run(t.Context(), source, op, sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 1000, Done: 999, Rejected: 1}, withoutTime(summary))
		require.Equal(t, 999, got)
		require.LessOrEqual(t, puts, 150)
	})
}

// Regression (law W2): a result that the sink never takes, without returning that, was
// called for again for ever.
func TestRunWithAMessageThatTheSinkNeverTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(20, false)
		tries, calls := 0, 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" }) {
				tries++
				return errors.New("no")
			}
			return nil
		})
		op := operator(func(ctx context.Context, i int) (string, error) {
			calls++
			return itoa(ctx, i)
		}, asyncop.WithMaxConcurrentCalls(1))
		summary, err := delivery.Run(t.Context(), source, op, sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 20, Done: 19, Rejected: 1}, withoutTime(summary))
		require.Equal(t, 20, calls)
		require.LessOrEqual(t, tries, 12)
		require.ErrorIs(t, source.of(7)[0].Err, message.ErrRefused)
		require.ErrorContains(t, source.of(7)[0].Err, "10 times: no")
	})
}

// Regression (law D5): an outage of the sink that began while results were put one by one
// made dead letters of up to a batch.
func TestRunWithASinkThatGoesDownInABatch(t *testing.T) {
	for _, last := range []int{20, 99, 1000} { // with and without results behind it
		synctest.Test(t, func(t *testing.T) {
			source, begun, alone, got := newList(last, false), time.Now(), 0, map[string]bool{}
			sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
				if alone < 5 && len(ms) > 1 {
					return errors.New("one of them is wrong")
				}
				if alone++; alone > 5 && time.Since(begun) < time.Hour {
					return errors.New("down")
				}
				for _, m := range ms {
					got[m.Value] = true
				}
				return nil
			})
			summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
			require.NoError(t, err)
			require.Equal(t, delivery.Summary{Received: last, Done: last}, withoutTime(summary))
			require.Len(t, got, last)
		})
	}
}

// Regression (law D5): if the sink went down after it had refused a result, and no other
// result was left to show that, the message of the result was rejected.
func TestRun_SinkGoesDownAfterItRefusedAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, begun, took := newList(20, false), time.Now(), map[string]bool{}
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			isRefused := slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" })
			switch since := time.Since(begun); {
			case isRefused && since < time.Second:
				return fmt.Errorf("row 7 conflicts with transaction %d", since)
			case since >= time.Second && since < time.Hour:
				return errors.New("connection refused")
			}
			for _, m := range ms {
				took[m.Value] = true
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 20, Done: 20}, withoutTime(summary))
		require.Len(t, took, 20)
	})
}

// Law W2: a refused result that is the last one is rejected, even if the numbers in the
// errors differ.
func TestRun_SinkRefusesTheLastResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, tries := newList(20, false), 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if !slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" }) {
				return nil
			}
			tries++
			return fmt.Errorf("row 7 is too long, request %d", tries)
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 20, Done: 19, Rejected: 1}, withoutTime(summary))
	})
}

// Law W2: if a refused result is the last one, the sink's refusal is recognised with the
// next results.
func TestRunWithALastResultThatTheSinkNeverTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(40, false)
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "9" }) {
				return errors.New("no")
			}
			return nil
		})
		op := operator(func(ctx context.Context, i int) (string, error) {
			if i >= 10 {
				time.Sleep(time.Duration(i) * time.Second)
			}
			return itoa(ctx, i)
		})
		summary, err := delivery.Run(t.Context(), source, op, sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 40, Done: 39, Rejected: 1}, withoutTime(summary))
	})
}

// Regression (law D5): a sink with room for some results was taken for a sink that
// refuses the others, which became dead letters after ten tries.
func TestRunWithASinkThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, begun, got, puts := newList(50, false), time.Now(), map[string]bool{}, 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			puts++
			for _, m := range ms {
				if len(ms) > 1 && m.Value == "7" && time.Since(begun) < 30*time.Second {
					return errors.New("no")
				}
			}
			if room := 5 + int(time.Since(begun)/(20*time.Second)); len(got)+len(ms) > room {
				return fmt.Errorf("%w: no room", store.ErrFull)
			}
			for _, m := range ms {
				got[m.Value] = true
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently, delivery.WithFloodGuard(1, 10))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 50, Done: 50}, withoutTime(summary))
		require.Len(t, got, 50)
		require.Less(t, puts, 1000, "one that is full is asked for the first result that waits, not for all")
	})
}

// A result that a sink has refused once, and then has no room for, waits for room. A full
// sink is not asked for each result.
func TestRunWithAResultThatHasNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, puts := time.Now(), 0
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			puts++
			seven := slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" })
			switch since := time.Since(begun); {
			case seven && since < 50*time.Millisecond:
				return errors.New("no")
			case seven && since < 5*time.Minute, since > time.Millisecond && since < time.Minute:
				return store.ErrFull
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), newList(50, false), operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 50, Done: 50}, withoutTime(summary))
		require.Less(t, puts, 150)
	})
}

// Results wait for a sink that is down, and the worker takes no more messages than it has
// room for: no call is repeated.
func TestRunWithASinkThatIsDown(t *testing.T) {
	for _, down := range []time.Duration{time.Second, 5 * time.Second, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			source := newList(5, false)
			begun := time.Now()
			got := &collected{}
			sink := sinkFunc(func(ctx context.Context, ms []message.Message[string]) error {
				if time.Since(begun) < down {
					panic("down")
				}
				return got.PutAll(ctx, ms)
			})
			summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently, delivery.WithFloodGuard(1, 10))
			require.NoError(t, err)
			require.Equal(t, delivery.Summary{Received: 5, Done: 5}, withoutTime(summary))
			require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, got.values)
			require.Less(t, time.Since(begun), 2*down+10*time.Second)
		})
	}
}

// A worker whose sink is down receives no more messages than it has room for.
func TestRunWithASinkThatIsDownReceivesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(1000, true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		sink := sinkFunc(func(context.Context, []message.Message[string]) error { return errors.New("down") })
		summary, err := delivery.Run(ctx, source, operator(itoa), sink, silently, delivery.WithBatch(10))
		require.NoError(t, err)
		require.Equal(t, summary.Received, summary.Released)
		require.LessOrEqual(t, summary.Received, 400, "what has room in the worker")
	})
}

// A sink may settle messages by itself, and then fail.
func TestRunWithASinkThatSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(4, false)
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			for _, m := range ms {
				if m.Value == "1" {
					m.Reject(errors.New("not a row"))
				} else if m.Value != "2" {
					m.Ack()
				}
			}
			if len(ms) > 1 {
				return errors.New("some are wrong")
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 4, Done: 3, Rejected: 1}, withoutTime(summary))
	})
}

// slow takes i+1 seconds for the number i.
func slow(ctx context.Context, i int) (string, error) {
	select {
	case <-time.After(time.Duration(i+1) * time.Second):
		return itoa(ctx, i)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// When the context ends, Run stops receiving, and finishes its messages.
func TestRunDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, sink := newList(5, true), &collected{}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1500*time.Millisecond, func() {
			cancel()
			source.endless <- 7
		})
		summary, err := delivery.Run(ctx, source, operator(slow), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 5, Done: 5, Elapsed: 5 * time.Second}, summary)
		require.Len(t, sink.values, 5)
	})
}

// Messages that were received but are not in the operator when the context ends are
// released, and not begun.
func TestRunTakesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		op := operator(func(ctx context.Context, i int) (string, error) {
			time.Sleep(time.Second)
			return itoa(ctx, i)
		}, asyncop.WithBuffer(1))
		summary, err := delivery.Run(ctx, newList(100, true), struct{ delivery.Operator[int, string] }{op}, &collected{}, silently) // without AwaitSlots
		require.NoError(t, err)
		require.GreaterOrEqual(t, summary.Done, 10)
		require.GreaterOrEqual(t, summary.Released, 80)
		require.LessOrEqual(t, summary.Elapsed, 3*time.Second)
	})
}

// losing is an operator that loses each second message.
type losing struct{}

func (losing) Stop(context.Context) error { return nil }

func (losing) Messages(input iter.Seq2[message.Message[int], error]) iter.Seq2[message.Message[string], error] {
	return func(yield func(message.Message[string], error) bool) {
		for m, err := range input {
			if err == nil && m.Value%2 == 0 && !yield(message.With(m, strconv.Itoa(m.Value)), nil) {
				return
			}
		}
	}
}

// A message that some step has lost is released by the end of its source, and counted.
func TestRunCountsWhatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		summary, err := delivery.Run(ctx, newList(10, true), losing{}, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 10, Done: 5, Released: 5, Elapsed: time.Second}, summary)
	})
}

// Laws D1, D2: messages that are not done when the time is over are released at once, and
// each of them once.
func TestRun_Releases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, sink := newList(40, true), &collected{}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1500*time.Millisecond, cancel)
		summary, err := delivery.Run(ctx, source, operator(slow), sink, silently, delivery.WithDrain(2*time.Second))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 11, Done: 3, Released: 8, Elapsed: 3500 * time.Millisecond}, summary)
		require.Equal(t, 11, source.count(), "ten slots, and what took the place of the one that was done in time")
		synctest.Wait()
		for i := range 11 {
			want := message.Settlement{Kind: message.Released}
			if i < 3 {
				want.Kind = message.Done
			}
			require.Equal(t, []message.Settlement{want}, source.of(i), i)
		}
	})
}

// WithDrain(0) releases all messages at once.
func TestWithDrain_Zero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1500*time.Millisecond, cancel)
		summary, err := delivery.Run(ctx, newList(40, true), operator(slow), &collected{}, silently, delivery.WithDrain(0))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 11, Done: 1, Released: 10, Elapsed: 1500 * time.Millisecond}, summary)
	})
}

// A sink that is stuck is broken off, too.
func TestRun_ReleasesWhatTheSinkHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(30, true)
		sink := sinkFunc(func(ctx context.Context, _ []message.Message[string]) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		summary, err := delivery.Run(ctx, source, operator(itoa), sink, silently, delivery.WithBatch(5))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: summary.Received, Released: summary.Received, Elapsed: 21 * time.Second}, summary)
		require.Positive(t, summary.Received)
		for i := range summary.Received {
			require.Equal(t, []message.Settlement{{Kind: message.Released}}, source.of(i), "law D2")
		}
	})
}

// A sink that fails now and then gets all its tries each time.
func TestRunWithASinkThatFailsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := map[string]int{}
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if tries[ms[0].Value]++; tries[ms[0].Value] < 4 {
				return errors.New("not now")
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), newList(3, false), operator(slow), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 3, Done: 3, Elapsed: 3700 * time.Millisecond}, summary)
	})
}

// After a failure of the operator its results are still put, also into a sink that was
// down; but if the sink is stuck, for no longer than a drain.
func TestRunPutsTheLastResults(t *testing.T) {
	for name, c := range map[string]struct {
		sink func(ctx context.Context, down bool) error
		want delivery.Summary
	}{
		"down": {func(_ context.Context, down bool) error {
			if down {
				return errors.New("down")
			}
			return nil
		}, delivery.Summary{Done: 1, Elapsed: 2500 * time.Millisecond}},
		"stuck": {func(ctx context.Context, _ bool) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, delivery.Summary{Elapsed: 4500 * time.Millisecond}},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(1500*time.Millisecond, func() { cancel(io.ErrClosedPipe) })
			sink := sinkFunc(func(ctx context.Context, _ []message.Message[string]) error {
				return c.sink(ctx, time.Since(begun) < 2*time.Second)
			})
			summary, err := delivery.Run(t.Context(), newList(2, true), operator(slow, asyncop.WithContext(ctx)), sink, silently,
				delivery.WithDrain(3*time.Second))
			require.ErrorIs(t, err, io.ErrClosedPipe, name)
			summary.Received, summary.Released = 0, 0
			require.Equal(t, c.want, summary, name)
		})
	}
}

// settling is an operator that settles its messages itself, one after the other.
type settling func(m message.Message[int])

func (settling) Stop(context.Context) error { return nil }

func (f settling) Messages(input iter.Seq2[message.Message[int], error]) iter.Seq2[message.Message[string], error] {
	return func(func(message.Message[string], error) bool) {
		for m, err := range input {
			if err != nil {
				return
			}
			f(m)
		}
	}
}

func TestRun_CountsSettlements(t *testing.T) {
	down := errors.New("down")
	synctest.Test(t, func(t *testing.T) {
		seen := map[int]bool{}
		op := settling(func(m message.Message[int]) {
			again := seen[m.Value]
			seen[m.Value] = true
			switch {
			case again || m.Value == 5:
				m.Ack()
			case m.Value == 0:
				m.Release()
			case m.Value == 1:
				m.Nack(time.Second)
			case m.Value == 2:
				m.Settle(message.Settlement{Kind: message.Failed, Err: down})
			case m.Value == 3:
				m.Reject(down)
			case m.Value == 4:
				m.Settle(message.Settlement{Kind: message.HandedOver, Err: down})
			}
		})
		summary, err := delivery.Run(t.Context(), newList(6, false), op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{
			Received: 9, Done: 4, HandedOver: 1, Rejected: 1, Failed: 2, Released: 1, Elapsed: time.Second,
		}, summary)
	})
	// A failure without a delay and an error counts as a failure, and a release with both
	// does not.
	for v, floods := range map[message.Settlement]int{
		{Kind: message.Failed}: 1,
		{Kind: message.Released, Delay: time.Millisecond, Err: message.ErrBackendDown}: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			settled := 0
			op := settling(func(m message.Message[int]) {
				settled++
				if settled <= 6 {
					m.Settle(v)
				}
				m.Ack()
			})
			summary, err := delivery.Run(t.Context(), newList(10, false), op, &collected{}, silently, delivery.WithBatch(10), delivery.WithFloodGuard(0.5, 10))
			require.NoError(t, err)
			require.Equal(t, floods, summary.Floods, "%v", v)
		})
	}
}

// Messages that were in the operator when the worker stopped, and fail after it has
// resumed, are not a new flood.
func TestRunGoesOnAfterAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := message.Settlement{Kind: message.HandedOver, Err: errors.New("down")}
		var late []message.Message[int]
		op := settling(func(m message.Message[int]) {
			switch {
			case m.Value < 4:
				late = append(late, m)
				return
			case m.Value < 10: // six of ten: a flood
				m.Settle(failed)
				return
			case m.Value > 10: // behind the probe
				for _, m := range late {
					m.Settle(failed)
				}
				late = nil
			}
			m.Ack()
		})
		summary, err := delivery.Run(t.Context(), newList(100, false), op, &collected{}, silently, delivery.WithBatch(10), delivery.WithFloodGuard(0.5, 10))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 100, Done: 90, HandedOver: 10, Floods: 1, Elapsed: time.Second}, summary)
	})
}

// After a block of messages without a flood, the first pause of the next flood is a
// second again.
func TestRunInTwoFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := settling(func(m message.Message[int]) {
			if m.Value < 6 || m.Value >= 40 && m.Value < 46 {
				m.Settle(message.Settlement{Kind: message.HandedOver, Err: errors.New("down")})
			}
			m.Ack()
		})
		summary, err := delivery.Run(t.Context(), newList(60, false), op, &collected{}, silently, delivery.WithBatch(10), delivery.WithFloodGuard(0.5, 10))
		require.NoError(t, err)
		require.Equal(t, 2, summary.Floods)
		require.Equal(t, 12, summary.HandedOver)
		require.Equal(t, 2*time.Second, summary.Elapsed)
	})
}

// A minority of failures does not stop a worker, and a share of 1 never does.
func TestRunWithoutAFlood(t *testing.T) {
	for _, c := range []struct {
		dead int // of ten
		opts []delivery.RunOption
	}{{4, nil}, {10, []delivery.RunOption{delivery.WithFloodGuard(1, 10)}}} {
		synctest.Test(t, func(t *testing.T) {
			op := operator(func(ctx context.Context, i int) (string, error) {
				if i%10 < c.dead {
					return "", errors.New("poison")
				}
				return itoa(ctx, i)
			}, asyncop.WithMaxConcurrentCalls(1))
			summary, err := delivery.Run(t.Context(), newList(1000, false), op, &collected{}, append(c.opts, silently)...)
			require.NoError(t, err)
			require.Zero(t, summary.Floods)
			require.Less(t, summary.Elapsed, time.Second)
		})
	}
}

// The flood guard does not delay the end.
func TestRunDrainsInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		op := operator(func(context.Context, int) (string, error) { return "", errors.New("down") })
		summary, err := delivery.Run(ctx, newList(500, true), op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 1, summary.Floods)
		require.Equal(t, 10*time.Second, summary.Elapsed)
	})
}

// Run refuses an operator that lacks a failure policy, or whose context ends with the
// context of Run.
func TestRunRefusesAWrongOperator(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for want, op := range map[string]*asyncop.AsyncWaitOperator[int, string]{
		"lacks a failure policy": asyncop.OrderedWait(asyncop.Blocking(itoa), 0, 1),
		"WithContext":            operator(itoa, asyncop.WithContext(context.WithValue(ctx, t, 1))),
	} {
		source := newList(1, false)
		summary, err := delivery.Run(ctx, source, op, &collected{})
		require.ErrorContains(t, err, want)
		require.Zero(t, summary.Received)
		require.True(t, source.closed)
		<-op.Done()
	}
	for _, op := range []*asyncop.AsyncWaitOperator[int, string]{
		operator(itoa, asyncop.WithContext(context.WithoutCancel(ctx))),
		asyncop.OrderedWait(asyncop.Blocking(itoa), 0, 1, asyncop.WithDropOnFailure()),
	} {
		_, err := delivery.Run(ctx, newList(1, false), op, &collected{})
		require.NoError(t, err)
	}
}

// Regression (law D1): a result has the id of its message, which is in its queue until
// the result is safe. Put into the same queue, it was dropped as a copy of the message.
func TestRunRefusesTheQueueOfTheSourceAsSink(t *testing.T) {
	numbers := memory.Open()
	source := delivery.NewQueue[int](numbers, "numbers")
	require.NoError(t, source.Put(t.Context(), 1))
	op := operator(itoa)
	summary, err := delivery.Run(t.Context(), source, op, delivery.NewQueue[string](numbers, "numbers"), silently)
	require.ErrorContains(t, err, "the sink is the queue of the source")
	require.Zero(t, summary.Received)
	<-op.Done()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	op = operator(func(ctx context.Context, n int) (string, error) {
		cancel()
		return itoa(ctx, n)
	})
	summary, err = delivery.Run(ctx, source, op, delivery.NewQueue[string](memory.Open(), "numbers"), silently)
	require.NoError(t, err, "of that name on another engine")
	require.Equal(t, 1, summary.Done)
}

// A source that fails is asked again. In the end the worker gives up.
func TestRunWithASourceThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newList(3, false)
		source.failures = slices.Repeat([]error{fmt.Errorf("no connection: %w", io.EOF)}, 5) // it wraps io.EOF, but is not the end
		summary, err := delivery.Run(t.Context(), source, operator(itoa), &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 3, Done: 3, Elapsed: 3100 * time.Millisecond}, summary)
	})
	synctest.Test(t, func(t *testing.T) {
		source := newList(3, false)
		source.failures = slices.Repeat([]error{io.ErrUnexpectedEOF}, 1000)
		summary, err := delivery.Run(t.Context(), source, operator(itoa), &collected{}, silently)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.GreaterOrEqual(t, summary.Elapsed, 5*time.Minute)
		require.Less(t, summary.Elapsed, 6*time.Minute)
		require.True(t, source.closed)
	})
}

// receiver is a list with another Receive and Close.
type receiver struct {
	*list
	receive func(ctx context.Context, n int) ([]message.Message[int], error)
	close   func(ctx context.Context) error
}

func (r receiver) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	return r.receive(ctx, n)
}

func (r receiver) Close(ctx context.Context) error {
	if r.close == nil {
		return r.list.Close(ctx)
	}
	return r.close(ctx)
}

// Run never gives up a source that fails now and then, and soon asks it again each time.
func TestRunWithASourceThatFailsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers, calls := newList(3100, false), 0
		source := receiver{list: numbers, receive: func(ctx context.Context, n int) ([]message.Message[int], error) {
			if calls++; calls%2 == 1 {
				return nil, errors.New("no connection")
			}
			return numbers.Receive(ctx, n)
		}}
		summary, err := delivery.Run(t.Context(), source, operator(itoa), &collected{}, silently, delivery.WithBatch(1))
		require.NoError(t, err)
		require.Equal(t, 3100, summary.Done)
		require.Equal(t, 3101*100*time.Millisecond, summary.Elapsed)
	})
}

// Run does not give up an idle source that fails now and then. It gives up a source whose
// every Receive takes long to fail.
func TestRunWithAnIdleSourceThatFails(t *testing.T) {
	failing := func(n int, after time.Duration) (source receiver) {
		source.list = newList(3, false)
		source.receive = func(ctx context.Context, most int) ([]message.Message[int], error) {
			if n--; n < 0 {
				return source.list.Receive(ctx, most)
			}
			time.Sleep(after)
			return nil, errors.New("the connection was cut")
		}
		return source
	}
	synctest.Test(t, func(t *testing.T) {
		summary, err := delivery.Run(t.Context(), failing(10, time.Hour), operator(itoa), &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 3, summary.Done)
		require.Equal(t, 10*(time.Hour+100*time.Millisecond), summary.Elapsed)
	})
	synctest.Test(t, func(t *testing.T) {
		summary, err := delivery.Run(t.Context(), failing(10, 130*time.Second), operator(itoa), &collected{}, silently)
		require.ErrorContains(t, err, "the connection was cut")
		require.Less(t, summary.Elapsed, 10*time.Minute)
	})
}

// A permanent fault is not retried: Run returns it, even if its context has ended
// meanwhile.
func TestRunWithAPermanentFault(t *testing.T) {
	errNoTable := errors.New("no such table")
	broken := fmt.Errorf("take: %w", guard.MarkPermanent(errNoTable))
	synctest.Test(t, func(t *testing.T) { // the source fails: received messages are finished
		source := newList(10, true)
		time.AfterFunc(time.Second, func() {
			source.mu.Lock()
			defer source.mu.Unlock()
			source.failures = []error{broken}
			source.endless <- 10
		})
		op := operator(func(ctx context.Context, i int) (string, error) {
			time.Sleep(5 * time.Second)
			return itoa(ctx, i)
		})
		summary, err := delivery.Run(t.Context(), source, op, &collected{}, silently, delivery.WithBatch(5))
		require.ErrorIs(t, err, errNoTable)
		require.ErrorContains(t, err, "the source has failed for good")
		require.GreaterOrEqual(t, summary.Done, 10)
		require.Less(t, summary.Elapsed, 11*time.Second)
	})
	synctest.Test(t, func(t *testing.T) { // the source fails when the context has ended
		ctx, cancel := context.WithCancel(t.Context())
		source := sourceFunc(func(context.Context) error {
			cancel()
			return broken
		})
		_, err := delivery.Run(ctx, source, operator(itoa), &collected{}, silently)
		require.ErrorIs(t, err, errNoTable)
	})
	synctest.Test(t, func(t *testing.T) { // the sink fails: all messages are released
		source := newList(50, true)
		puts := 0
		sink := sinkFunc(func(context.Context, []message.Message[string]) error { puts++; return broken })
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.ErrorIs(t, err, errNoTable)
		require.ErrorContains(t, err, "the sink has failed for good")
		require.Equal(t, 1, puts)
		require.Equal(t, summary.Received, summary.Released)
		require.Zero(t, summary.Elapsed)
	})
}

// sourceFunc is a source that fails.
type sourceFunc func(ctx context.Context) error

func (f sourceFunc) Receive(ctx context.Context, _ int) ([]message.Message[int], error) {
	return nil, f(ctx)
}

func (sourceFunc) Close(context.Context) error { return nil }

// If Run gives a source up, it drains before it ends.
func TestRunDrainsAfterASourceThatHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers := newList(1, true)
		source := receiver{list: numbers, receive: func(ctx context.Context, n int) ([]message.Message[int], error) {
			if numbers.count() > 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return numbers.Receive(ctx, n)
		}}
		hour := func(ctx context.Context, _ int) (string, error) { return slow(ctx, 3599) }
		summary, err := delivery.Run(t.Context(), source, operator(hour), &collected{}, silently)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, 1, summary.Released)
		require.Less(t, summary.Elapsed, 6*time.Minute)
	})
}

// A Receive that asks a server which hangs may not end with its context: then the end of
// its source ends it.
func TestRunWithAReceiveThatHangs(t *testing.T) {
	for _, received := range []int{0, 1} {
		t.Run("received="+strconv.Itoa(received), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				numbers := newList(received, true)
				closed := make(chan struct{})
				end := sync.OnceFunc(func() { close(closed) })
				source := receiver{numbers, func(ctx context.Context, n int) ([]message.Message[int], error) {
					if numbers.count() < received {
						return numbers.Receive(ctx, n)
					}
					<-closed
					return nil, errors.New("the source is closed")
				}, func(ctx context.Context) error {
					end()
					return numbers.Close(ctx)
				}}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				summary, err := delivery.Run(ctx, source, operator(itoa, asyncop.WithFailureSink(taken)), &collected{}, silently)
				require.NoError(t, err)
				require.Equal(t, delivery.Summary{Received: received, Done: received, Elapsed: 24 * time.Second}, summary)
			})
		})
	}
}

// A source that does not close is left behind after three seconds.
func TestRunWithASourceThatDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers := newList(1, false)
		source := receiver{list: numbers, receive: numbers.Receive, close: func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		summary, err := delivery.Run(t.Context(), source, operator(itoa), &collected{}, silently)
		require.ErrorContains(t, err, "the source was not closed within 3s")
		require.Equal(t, delivery.Summary{Received: 1, Done: 1, Elapsed: 3 * time.Second}, summary)
	})
}

// Regression: a server that hangs kept a worker for 50 s, longer than the 30 s that
// Kubernetes waits for it.
func TestRunEndsInTimeWhateverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers, closes := newList(1, true), 0
		closed := make(chan struct{})
		source := receiver{numbers, func(ctx context.Context, n int) ([]message.Message[int], error) {
			if numbers.count() == 0 {
				return numbers.Receive(ctx, n)
			}
			<-closed
			return nil, errors.New("the source is closed")
		}, func(ctx context.Context) error {
			if closes++; closes == 1 {
				defer close(closed)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		sink := sinkFunc(func(ctx context.Context, _ []message.Message[string]) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		summary, err := delivery.Run(ctx, source, operator(itoa, asyncop.WithFailureSink(taken)), sink, silently)
		require.NoError(t, err, "it was told to leave, and what it had comes again")
		require.LessOrEqual(t, summary.Elapsed-time.Second, 26*time.Second)
		require.Equal(t, 1, closes)
	})
}

// A worker that is stopped while its queue has no leader ends without an error. If its
// engine is closed, the error is returned.
func TestRunThatCannotSayFarewell(t *testing.T) {
	for what, want := range map[string]error{"no leader": nil, "closed": store.ErrClosed} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				numbers := newList(1, true)
				source := receiver{list: numbers, receive: numbers.Receive, close: func(context.Context) error {
					if want != nil {
						return want
					}
					return errors.New("no responders")
				}}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := delivery.Run(ctx, source, operator(itoa), &collected{}, silently)
				require.ErrorIs(t, err, want)
			})
		})
	}
}

// ending is an operator that a function runs, so it can end by itself.
type ending func(input iter.Seq2[message.Message[int], error]) error

func (ending) Stop(context.Context) error { return nil }

func (f ending) Messages(input iter.Seq2[message.Message[int], error]) iter.Seq2[message.Message[string], error] {
	return func(yield func(message.Message[string], error) bool) {
		if err := f(input); err != nil {
			yield(message.Message[string]{}, err)
		}
	}
}

// Messages that an operator no longer takes are released at once, and the source is
// closed when its Receive has returned.
func TestRunWithAnOperatorThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers := newList(5, true)
		summary, err := delivery.Run(t.Context(), numbers, ending(func(input iter.Seq2[message.Message[int], error]) error {
			for m, err := range input {
				require.NoError(t, err)
				m.Ack()
				break
			}
			return nil
		}), &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 5, Done: 1, Released: 4}, summary)
		for i := 1; i < 5; i++ {
			require.Equal(t, []message.Settlement{{Kind: message.Released}}, numbers.of(i))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		receiving := false
		source := receiver{
			list: newList(0, true),
			receive: func(context.Context, int) ([]message.Message[int], error) {
				receiving = true
				time.Sleep(time.Second) // it ignores its context
				receiving = false
				return nil, io.EOF
			},
			close: func(context.Context) error {
				require.False(t, receiving)
				return nil
			},
		}
		summary, err := delivery.Run(t.Context(), source, ending(func(input iter.Seq2[message.Message[int], error]) error {
			go func() {
				for _, err := range input {
					assert.NoError(t, err)
				}
			}()
			synctest.Wait()
			return nil
		}), &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, time.Second, summary.Elapsed)
	})
	// An operator of your own may end with the context of Run: that is no error.
	for own, want := range map[error]error{context.Canceled: nil, io.ErrClosedPipe: io.ErrClosedPipe} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := delivery.Run(ctx, newList(1, true), ending(func(iter.Seq2[message.Message[int], error]) error {
			cancel()
			return own
		}), &collected{}, silently)
		require.ErrorIs(t, err, want)
	}
}

// An operator that fails ends the run: its results so far are put, and the rest is
// released.
func TestRunWithAnOperatorThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, sink := newList(5, true), &collected{}
		ctx, cancel := context.WithCancelCause(context.Background())
		op := operator(slow, asyncop.WithContext(ctx))
		time.AfterFunc(2500*time.Millisecond, func() { cancel(io.ErrClosedPipe) })
		summary, err := delivery.Run(t.Context(), source, op, sink, silently)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.GreaterOrEqual(t, summary.Released, 3) // released messages may have been redelivered before the worker ended
		require.Equal(t, delivery.Summary{
			Received: 2 + summary.Released, Done: 2, Released: summary.Released, Elapsed: 2500 * time.Millisecond,
		}, summary)
		require.Equal(t, []string{"0", "1"}, sink.values)
	})
}

// An operator that something else drives is refused, and the source is closed all the
// same.
func TestRunWithAnOperatorInUse(t *testing.T) {
	op := operator(itoa)
	for range op.Results(func(func(int) bool) {}) {
	}
	source := newList(1, false)
	require.Panics(t, func() { _, _ = delivery.Run(t.Context(), source, op, &collected{}, silently) })
	require.True(t, source.closed)
}

// row is two operators, one after the other, as one operator.
type row struct {
	first  *asyncop.AsyncWaitOperator[int, int]
	second *asyncop.AsyncWaitOperator[int, string]
}

func (r row) Messages(input iter.Seq2[message.Message[int], error]) iter.Seq2[message.Message[string], error] {
	return r.second.Messages(r.first.Messages(input))
}

func (r row) Stop(ctx context.Context) error {
	return errors.Join(r.first.Stop(ctx), r.second.Stop(ctx))
}

func TestRunWithARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := row{
			asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) { return i + 1, nil }), 0, 10),
			operator(slow),
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3500*time.Millisecond, cancel)
		sink := &collected{}
		summary, err := delivery.Run(ctx, newList(10, true), op, sink, silently, delivery.WithDrain(2*time.Second))
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 10, Done: 4, Released: 6, Elapsed: 5500 * time.Millisecond}, summary)
		require.Equal(t, []string{"1", "2", "3", "4"}, sink.values)
	})
}

// slotless has no free slot. In a row that embeds its second operator, this would
// describe the input of that operator.
type slotless struct {
	*asyncop.AsyncWaitOperator[int, string]
}

func (slotless) AwaitSlots(context.Context) int { return 0 }

func TestRunAsksForSlotsOnlyTheOperatorThatItFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		summary, err := delivery.Run(t.Context(), newList(3, false), slotless{operator(slow)}, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 3, summary.Received)
	})
}

func TestSummary(t *testing.T) {
	s := delivery.Summary{Received: 21, Done: 1, HandedOver: 2, Rejected: 3, Failed: 4, Released: 11, Floods: 5, Elapsed: 1500 * time.Millisecond}
	require.Equal(t, "received 21 in 1.5s: done 1, handed over 2, rejected 3, failed 4, released 11; 5 floods", s.String())
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("worker ended", "summary", s)
	require.Contains(t, b.String(), "summary.received=21 summary.done=1 summary.handed_over=2 summary.rejected=3 summary.failed=4 "+
		"summary.released=11 summary.purged=0 summary.floods=5 summary.elapsed=1.5s")

	s.Purged = 6
	require.Contains(t, s.String(), "released 11, purged 6; 5 floods")

	b.Reset()
	_, err := delivery.Run(t.Context(), newList(3, false), operator(itoa), &collected{}, delivery.WithLogger(slog.New(slog.NewTextHandler(&b, nil))))
	require.NoError(t, err)
	require.Contains(t, b.String(), `msg="delivery: the worker has ended" messages.received=3 messages.done=3`)
}

func TestRun_NilArguments(t *testing.T) {
	require.Panics(t, func() { _, _ = delivery.Run[int, string](t.Context(), nil, nil, nil) })
}

func TestSettle(t *testing.T) {
	for _, c := range []struct{ give, want message.Settlement }{
		{message.Settlement{Kind: message.Done, Err: io.EOF, Delay: 1}, message.Settlement{Kind: message.Done}},
		{message.Settlement{Kind: message.HandedOver, Err: io.EOF, Delay: 1}, message.Settlement{Kind: message.HandedOver, Err: io.EOF}},
		{message.Settlement{Kind: message.Released, Delay: -1}, message.Settlement{Kind: message.Released}},
		{message.Settlement{Kind: message.Failed, Delay: -1}, message.Settlement{Kind: message.Failed}},
		{message.Settlement{Kind: message.Rejected, Err: io.EOF, Delay: 1}, message.Settlement{Kind: message.Rejected, Err: io.EOF}},
	} {
		var got []message.Settlement
		m := message.New(1, nil, func(v message.Settlement) { got = append(got, v) })
		m.Settle(c.give)
		m.Ack()
		require.Equal(t, []message.Settlement{c.want}, got)
		require.Contains(t, fmt.Sprint(got[0]), c.want.Kind.String())
	}
	require.Panics(t, func() { message.New(1, nil, func(message.Settlement) {}).Settle(message.Settlement{Kind: 7}) })

	var whole message.Settlement
	parts := message.Split(message.New(1, nil, func(v message.Settlement) { whole = v }), 1, 2)
	parts[0].Ack()
	parts[1].Settle(message.Settlement{Kind: message.HandedOver, Err: io.EOF})
	require.Equal(t, message.Settlement{Kind: message.HandedOver, Err: io.EOF}, whole, "a part has failed")
}

// breaking is a source whose Receive returns when its context ends, with an error whose
// methods panic.
type breaking struct{ *list }

func (breaking) Receive(ctx context.Context, _ int) ([]message.Message[int], error) {
	<-ctx.Done()
	return nil, (*fs.PathError)(nil)
}

// Law A6: an error whose methods panic ends neither a run nor the process.
func TestErrorsThatBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := delivery.Run(ctx, breaking{newList(1, true)}, operator(itoa), &collected{}, silently)
		require.NoError(t, err)
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		op := asyncop.UnorderedWait(asyncop.Blocking(func(context.Context, int) (string, error) {
			cancel()
			return "", (*fs.PathError)(nil)
		}), time.Hour, 10, asyncop.WithLogger(quiet))
		_, err := delivery.Run(ctx, newList(1, true), op, &collected{}, silently)
		require.True(t, err == nil || fmt.Sprint(err) != "")
	})
}

// Run puts up to 100 results at once, or as many as the operator has slots if it has
// more.
func TestRunPutsAsManyAsTheOperatorHasSlots(t *testing.T) {
	for slots, want := range map[int]int{10: 100, 1000: 1000} {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
				sizes = append(sizes, len(ms))
				time.Sleep(time.Second)
				return nil
			})
			op := asyncop.UnorderedWait(asyncop.Blocking(itoa), time.Hour, slots, asyncop.WithLogger(quiet), asyncop.WithFailureSink(taken))
			_, err := delivery.Run(t.Context(), newList(5000, false), op, sink, silently)
			require.NoError(t, err)
			require.Equal(t, want, slices.Max(sizes), sizes)
		})
	}
}

type asked struct {
	*list
	ns []int
}

func (a *asked) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	a.ns = append(a.ns, n)
	return a.list.Receive(ctx, n)
}

// Regression: messages that Run had passed on occupied slots that still counted as free,
// so each Receive asked for more than the one before.
func TestRunHoldsFewMessagesWhenTheServiceBecomesSlow(t *testing.T) {
	const (
		slots   = 100
		journey = 10 * time.Millisecond // of a Receive
		fast    = 5 * time.Millisecond  // a call
	)
	meanwhile := int(slots * journey / fast) // calls that end during a Receive
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		source := &distant{list: newList(100_000, false), journey: journey}
		var isSlow atomic.Bool
		var ended atomic.Int64
		call := asyncop.Blocking(func(ctx context.Context, i int) (string, error) {
			wait := fast/2 + fast*time.Duration(i%11)/10
			if isSlow.Load() {
				wait = time.Minute
			}
			select {
			case <-time.After(wait):
				ended.Add(1)
			case <-ctx.Done():
			}
			return itoa(ctx, i)
		})
		op := asyncop.UnorderedWait(call, 0, slots, asyncop.WithLogger(quiet), asyncop.WithFailureSink(taken))
		over := make(chan error, 1)
		go func() {
			_, err := delivery.Run(ctx, source, op, &collected{}, delivery.WithLogger(quiet), delivery.WithDrain(0))
			over <- err
		}()
		time.Sleep(2 * time.Second)
		done := ended.Load()
		isSlow.Store(true)
		time.Sleep(time.Second)
		held := source.came.Load() - ended.Load()
		cancel()
		require.NoError(t, <-over)
		require.Greater(t, done, int64(2*time.Second/fast)*slots*7/10, "the service was busy")
		require.LessOrEqual(t, held, int64(slots+3*meanwhile))
	})
}

// distant is a list on the other side of a network.
type distant struct {
	*list
	journey time.Duration
	came    atomic.Int64
}

func (d *distant) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	time.Sleep(d.journey)
	ms, err := d.list.Receive(ctx, n)
	d.came.Add(int64(len(ms)))
	return ms, err
}

// A Receive is a round trip to the engine that many messages share. Messages without a
// slot stay in the engine.
func TestRunReceivesAsManyAsTheOperatorHasFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for slots, want := range map[int]int{10: 10, 500: 500, 5000: 1000} {
			source := &asked{list: newList(6000, false)}
			op := asyncop.UnorderedWait(asyncop.Blocking(slow), 0, slots, asyncop.WithLogger(quiet), asyncop.WithFailureSink(taken))
			summary, err := delivery.Run(t.Context(), source, op, &collected{}, silently)
			require.NoError(t, err)
			require.Equal(t, 6000, summary.Done)
			require.Equal(t, want, source.ns[0], "%d slots", slots)
			require.LessOrEqual(t, slices.Max(source.ns), max(want, 2*slots), "%d slots", slots)
			require.LessOrEqual(t, slices.Max(source.ns), 1000)
		}
	})
}

// A worker whose engine is closed ends, and its error names the queue.
func TestRun_EngineIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), noLog)
		time.AfterFunc(time.Minute, func() { _ = engine.Close() })
		_, err := delivery.Run(t.Context(), q, operate(q, func(context.Context, job) (string, error) { return "", nil }), &collected{}, silently)
		require.ErrorIs(t, err, store.ErrClosed)
		require.ErrorContains(t, err, `queue "jobs"`)
	})
}
