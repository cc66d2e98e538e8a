package asyncop_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law Q2: slots never exceed the capacity, and wait for downstream; timers do not.

// Q2: elements in flight.
func TestCapacityBoundsElementsInFlight(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		for i := range m.capacity + 3 {
			r.send(string(rune('a' + i)))
		}
		require.EqualValues(t, m.capacity, r.stats().Accepted)
		r.complete("a#1", "A")
		require.EqualValues(t, m.capacity+1, r.stats().Accepted)
		r.answer = upper
		for _, c := range r.made {
			_ = upper(c)
		}
		require.NoError(t, r.end())
		require.EqualValues(t, m.capacity+3, r.stats().Accepted)
	}, 1, 2, 7)
}

// Q2: elements in back-off, and those whose retry waits for a permit.
func TestCapacityCountsBackoff(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 2
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		require.Equal(t, "a#1 b#1", r.calls(), "in back-off")
		r.advance(time.Second)
		require.Equal(t, "a#1 b#1", r.calls(), "due")
		require.EqualValues(t, 2, r.stats().Accepted)
		r.complete("b#1", "B")
		r.complete("a#2", "A")
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.EqualValues(t, 3, r.stats().Accepted)
	})
}

// Q2: elements that are complete and not emitted: downstream takes nothing, or in order the head is not complete.
func TestCapacityCountsWhatIsCompleteAndNotEmitted(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 3
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))})
		r.sendEach("abc")
		r.complete("b#1", "B")
		r.complete("c#1", "C")
		go func() { r.op.In() <- "d" }()
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		r.complete("a#1", "A")
		require.Equal(t, "a#1 b#1 c#1", r.calls(), "downstream takes nothing")
		<-r.op.Out()
		require.Equal(t, "a#1 b#1 c#1 d#1", r.calls())
		r.complete("d#1", "D")
		r.unblock()
		require.NoError(t, r.end())
	})
}

// Q2: an element that emits several results holds its slot until the last one is taken.
func TestSlotIsHeldUntilTheLastResult(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 1
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))})
		r.sendEach("a")
		r.complete("a#1", "A1", "A2")
		go func() { r.op.In() <- "b" }()
		<-r.op.Out()
		require.Equal(t, "a#1", r.calls())
		<-r.op.Out()
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1")
		require.NoError(t, r.end())
	})
}

// Q2: watermarks take slots; a full operator takes none.
func TestCapacityCountsWatermarks(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 3
		r := newRig(t, m, setup{opts: options(asyncop.WithBuffer(0))})
		r.send("a", mark(1), mark(2))
		sent := make(chan struct{})
		go func() { r.op.In() <- mark(3); close(sent) }()
		r.advance(time.Hour)
		select {
		case <-sent:
			t.Fatal("a fourth slot")
		default:
		}
		r.complete("a#1", "A")
		<-sent
		require.NoError(t, r.end())
		require.Equal(t, "A |1| |2| |3|", r.outputs())
	})
}

// Q2: elements with their timeout handler, and failed ones that the failure sink has not taken.
func TestCapacityCountsHandlersAndFailures(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 2
		answer := make(chan struct{})
		side := newSideSink(true)
		r := newRig(t, m, setup{
			timeout: time.Second, opts: options(asyncop.WithFailureSink(side.take)),
			wrap: func(h *hand) function {
				return timeoutMethod(h, func(context.Context, string) ([]string, error) { <-answer; return nil, nil })
			},
		})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		r.advance(time.Second) // b's handler runs
		require.Equal(t, "a#1 b#1", r.calls())
		close(answer)
		require.Equal(t, m.pick("a#1 b#1", "a#1 b#1 c#1"), r.calls(), "in order, b waits for a")
		side.unblock()
		require.Equal(t, "a#1 b#1 c#1", r.calls())
		r.complete("c#1", "C")
		require.NoError(t, r.end())
	})
}

// Q2: a dropped element, or one without result, frees its slot without downstream.
func TestSlotsOfElementsThatEmitNothing(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithDropOnFailure(), asyncop.WithBuffer(0))})
		r.answer = func(c *call) error {
			if c.in < "m" {
				return errBroken
			}
			return empty(c)
		}
		r.sendEach("abcxyz")
		require.Equal(t, "a#1 b#1 c#1 x#1 y#1 z#1", r.calls())
		require.NoError(t, r.end())
	}, 1, 2)
}

// Q2: retries are made on time although downstream takes nothing.
func TestRetriesUnderBackpressure(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, time.Second), blocked: true, opts: options(asyncop.WithBuffer(0)),
		})
		r.script("a#1", upper) // stuck
		r.script("b#1", fails)
		r.script("b#2", fails)
		r.script("b#3", upper)
		r.sendEach("ab")
		r.advance(10 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s b#2@1s b#3@2s", r.callTimes())
		r.unblock()
		require.NoError(t, r.end())
		require.Equal(t, "A B", r.outputs())
	})
}

// Q2: attempt timeouts, too.
func TestAttemptTimeoutsUnderBackpressure(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(3, time.Second), blocked: true,
			opts: options(asyncop.WithBuffer(0), asyncop.WithAttemptTimeout(2*time.Second)),
		})
		r.script("a#1", upper) // stuck
		r.sendEach("ab")
		r.advance(4 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s b#2@3s", r.callTimes())
		r.complete("b#2", "B")
		r.unblock()
		require.NoError(t, r.end())
	})
}

// Small operators do all that large ones do, only later: every element leaves once, in its order.
func TestSmallOperatorsDoTheSameWork(t *testing.T) {
	for _, buffer := range []int{0, 1, 64} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{
				timeout: time.Second, strategy: retryAll(2, 100*time.Millisecond), wrap: handled,
				opts: options(asyncop.WithBuffer(buffer), asyncop.WithDropOnFailure()),
			})
			r.answer = func(c *call) error {
				switch {
				case c.in == "t": // times out
					return nil
				case c.in == "r" && c.attempt < 3, c.in == "f":
					return errBroken
				case c.in == "g":
					go func() { time.Sleep(50 * time.Millisecond); _ = upper(c) }()
					return nil
				}
				return upper(c)
			}
			for _, e := range "atbrcfdget" {
				r.op.In() <- string(e)
			}
			r.op.In() <- mark(1)
			r.op.In() <- "z"
			r.endInputOnce()
			r.advance(time.Minute)
			require.NoError(t, r.end())
			require.Regexp(t, `\|1\| Z$`, r.outputs())
			require.NotContains(t, r.outputs(), "F")
			got := strings.Fields(r.outputs())
			if m.ordered {
				require.Equal(t, "A t! B R C D G E t! |1| Z", r.outputs())
			}
			require.ElementsMatch(t, strings.Fields("A t! B R C D G E t! |1| Z"), got)
			checkBalance(t, r.stats())
		}, 1, 2, 3)
	}
}

// Q2, counted from outside and, on the loop, from inside while everything goes on at once. Not in a bubble.
func TestCapacityIsNeverExceeded(t *testing.T) {
	for _, capacity := range []int{1, 2, 5, 33} {
		for _, ordered := range []bool{true, false} {
			m := mode{ordered: ordered, capacity: capacity}
			t.Run(m.String(), func(t *testing.T) { checkCapacity(t, m) })
		}
	}
}

func checkCapacity(t *testing.T, m mode) {
	t.Helper()
	const elements = 500
	var op *asyncop.AsyncWaitOperator[int, int]
	var most, running, mostRunning atomic.Int64
	note := func() {
		if n := int64(asyncop.SlotsTaken(op)); n > most.Load() {
			most.Store(n) // on the loop only
		}
	}
	fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		n := running.Add(1)
		for old := mostRunning.Load(); n > old && !mostRunning.CompareAndSwap(old, n); old = mostRunning.Load() {
		}
		defer running.Add(-1)
		if rand.IntN(3) == 0 {
			return 0, errBroken
		}
		return in, nil
	})
	counting := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		note()
		return fn.AsyncInvoke(ctx, in, result)
	})
	s := strategies.FixedDelay[int](50, 10*time.Microsecond).
		RetryIfException(func(err error) bool { note(); return predicates.HasException(err) })
	started := make(chan struct{})
	maxCalls := max(1, m.capacity/2)
	op = construct[int, int](m, counting, time.Minute, s, asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(maxCalls),
		asyncop.WithDrainRetries())
	var sent, received atomic.Int64
	go func() {
		defer close(op.In())
		<-started
		for i := range elements {
			if i%10 == 0 {
				op.In() <- mark(int64(i))
			} else {
				op.In() <- i
			}
			// What was taken and has not come out has a slot; received may lag by the one being handed over.
			if n := sent.Add(1) - received.Load(); n > int64(m.capacity)+1 {
				t.Errorf("%d slots", n)
			}
		}
	}()
	close(started)
	for range op.Out() {
		received.Add(1)
	}
	require.NoError(t, op.Wait())
	require.EqualValues(t, elements, received.Load())
	require.LessOrEqual(t, most.Load(), int64(m.capacity))
	require.LessOrEqual(t, mostRunning.Load(), int64(maxCalls))
	if m.capacity <= 5 {
		require.EqualValues(t, m.capacity, most.Load(), "the capacity was used")
	}
}
