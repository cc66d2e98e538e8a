package timeouts_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law T1: timers are never early, timers for the same time fire in arming order, and
// an idle operator costs nothing.

// Law T1: retries, attempt timeouts and timeouts of many elements at odd times, each to
// the nanosecond.
func TestTimersAreExact(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 100
		const base = 1_234_567 * time.Nanosecond
		s := ownDelay(func(n int) time.Duration { return time.Duration(n) * base })
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Strategy: s, Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithAttemptTimeout(10*base + 1)),
		})
		sent := map[string]time.Duration{}
		for i := range 50 {
			in := fmt.Sprint(i)
			r.Advance(time.Duration(i*i) * 1111)
			sent[in] = r.Now()
			r.Send(in)
		}
		r.Advance(2 * time.Second)
		for _, c := range r.Made {
			at := sent[c.In]
			for n := 1; n < c.Attempt; n++ {
				at += 10*base + 1 + time.Duration(n)*base
			}
			require.Equal(t, at, c.At, c)
		}
		for _, o := range strings.Fields(r.OutputTimes()) {
			in, at, _ := strings.Cut(o, "!@")
			require.Equal(t, (sent[in] + time.Second).String(), at)
		}
		require.NoError(t, r.End())
	})
}

// ownDelay is a strategy without a bound that retries errors. Its function returns the
// delays.
type ownDelay func(attempts int) time.Duration

func (ownDelay) CanRetry(int) bool                          { return true }
func (d ownDelay) BackoffTime(n int) time.Duration          { return d(n) }
func (ownDelay) RetryPredicate() optest.PredicatesOfStrings { return optest.ErrorsOnly }

// Law T1: timers are never early, in real time.
func TestTimersAreNeverEarlyInRealTime(t *testing.T) {
	const delay, timeout = 2 * time.Millisecond, 15 * time.Millisecond
	last := map[int]time.Time{} // owned by the loop
	fn := optest.TimeoutMethod(
		asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[string]) error {
			now := time.Now()
			if before, ok := last[in]; ok && now.Sub(before) < delay {
				result.Complete(fmt.Sprintf("retry %d of %d: after %v", asyncop.AttemptFromContext(ctx), in, now.Sub(before)))
				return nil
			}
			last[in] = time.Now()
			return optest.ErrBroken
		}),
		func(context.Context, int) ([]string, error) { return nil, nil },
	)
	s := strategies.FixedDelay[string](strategies.Unlimited, delay).RetryIfException(predicates.HasException)
	op := asyncop.UnorderedWaitWithRetry(fn, timeout, 256, s, asyncop.WithDrainRetries())
	begin := time.Now()
	for i := range 200 {
		op.In() <- i
	}
	close(op.In())
	for early := range op.Out() {
		t.Error(early)
	}
	require.NoError(t, op.Wait())
	require.GreaterOrEqual(t, time.Since(begin), timeout)
	require.EqualValues(t, 200, op.Stats().Timeouts)
}

// Law T1: back-offs that end at the same instant fire in the order in which they were
// armed.
func TestEqualBackoffsFireInArmingOrder(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
		r.SendEach("abcd")
		for _, e := range []string{"c", "a", "d", "b"} {
			r.Fail(e+"#1", optest.ErrBroken)
		}
		r.Advance(time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s c#2@1s a#2@1s d#2@1s b#2@1s", r.CallTimes())
	})
}

// Law T1: the same applies to timers that were armed at different times. An earlier timer
// fires first, even if it was armed last.
func TestEqualBackoffsArmedAtDifferentTimes(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var delay time.Duration
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: ownDelay(func(int) time.Duration { return delay })})
		r.SendEach("abcd")
		failAt := func(call string, at, due time.Duration) {
			r.Advance(at - r.Now())
			delay = due - at
			r.Fail(call, optest.ErrBroken)
		}
		failAt("d#1", 0, 3*time.Second)
		failAt("c#1", 1*time.Second, 3*time.Second)
		failAt("a#1", 2*time.Second, 3*time.Second)
		failAt("b#1", 2500*time.Millisecond, 3*time.Second-1)
		r.Advance(time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s b#2@2.999999999s d#2@3s c#2@3s a#2@3s", r.CallTimes())
	})
}

// Law T1: timeouts at the same instant come in input order.
func TestEqualTimeoutsFireInInputOrder(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
		r.SendEach("hgfedcba")
		r.Advance(time.Second)
		require.Equal(t, "h g f e d c b a", side.Elements())
	})
}

// Law T1: attempt timeouts at the same instant come in the order of their calls.
func TestWithAttemptTimeout_EqualOnesFireInArmingOrder(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, 0), Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("dbca")
		r.Advance(time.Second)
		require.Equal(t, "d#1@0s b#1@0s c#1@0s a#1@0s d#2@1s b#2@1s c#2@1s a#2@1s", r.CallTimes())
	})
}

// Law T1: a completion that was posted by then precedes the timer of its attempt.
func TestCompletionGoesBeforeTheAttemptTimeout(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, 0), Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.Script("b#1", func(c *optest.Call) error { time.Sleep(time.Second); return optest.Upper(c) }) // busy from 0.5 to 1.5 s
		r.SendEach("a")
		a := r.Call("a#1")
		time.Sleep(500 * time.Millisecond)
		r.Op.In() <- "b"
		time.Sleep(500 * time.Millisecond)
		a.Complete("A")
		require.NoError(t, r.End())
		require.Equal(t, "A B", r.Outputs())
		require.Zero(t, r.Stats().AttemptTimeouts)
	})
}

// Law T1: a late loop handles everything that has become due in the order of the due
// times.
func TestLateLoopFiresInOrderOfTime(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		delays := map[int]time.Duration{0: 300 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond}
		next := -1
		s := ownDelay(func(int) time.Duration { next++; return delays[next] })
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
		r.Script("x#1", func(*optest.Call) error { time.Sleep(time.Second); return nil })
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken)
		r.Fail("c#1", optest.ErrBroken)
		r.Op.In() <- "x"
		r.Advance(time.Second)
		require.Equal(t, "a#1@0s b#1@0s c#1@0s x#1@0s b#2@1s c#2@1s a#2@1s", r.CallTimes())
	})
}

// countingClock counts the operator's calls of its clock.
type countingClock struct {
	clock.Clock
	uses, armed, fired atomic.Int64
}

func (c *countingClock) Now() time.Time { c.uses.Add(1); return c.Clock.Now() }

func (c *countingClock) Since(t time.Time) time.Duration { c.uses.Add(1); return c.Clock.Since(t) }

func (c *countingClock) AfterFunc(d time.Duration, f func()) *clock.Timer {
	c.uses.Add(1)
	c.armed.Add(1)
	return c.Clock.AfterFunc(d, func() { c.fired.Add(1); f() })
}

// Law T1: an operator that waits neither reads the clock nor sets a timer until something
// is due.
func TestIdleCostsNothing(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		c := &countingClock{Clock: clock.New()}
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 2 * time.Hour, Strategy: optest.RetryAll(1, 100*time.Minute), Opts: optest.Options(asyncop.WithClock(c)),
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		r.Advance(time.Second) // the watch over a busy loop has ended
		uses, fired := c.uses.Load(), c.fired.Load()
		r.Advance(99 * time.Minute)
		require.Equal(t, uses, c.uses.Load())
		require.Equal(t, fired, c.fired.Load())
		r.Advance(59 * time.Second)
		require.Equal(t, "a#1@0s b#1@0s a#2@1h40m0s", r.CallTimes())
		require.Equal(t, fired+1, c.fired.Load())
	})
}

// After the end of the input or of the operator, however it ends, no timer is armed.
func TestTimers_NoneAfterTheEnd(t *testing.T) {
	ends := map[string]func(r *optest.Rig){
		"end of input": func(r *optest.Rig) { r.EndInput(); r.Complete("a#1", "A"); r.Complete("b#2", "B") },
		"failure":      func(r *optest.Rig) { r.Fail("b#2", optest.ErrBroken) },
		"cancel":       func(r *optest.Rig) { r.Cancel(optest.ErrTestOver) },
		"stop": func(r *optest.Rig) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = r.Op.Stop(ctx)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				c := &countingClock{Clock: clock.New()}
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Hour, Strategy: optest.RetryAll(1, time.Minute),
					Opts: optest.Options(asyncop.WithClock(c), asyncop.WithAttemptTimeout(30*time.Minute)),
				})
				r.SendEach("ab")
				r.Fail("b#1", optest.ErrBroken)
				r.Advance(time.Minute)
				end(r)
				_ = r.Wait()
				uses, fired := c.uses.Load(), c.fired.Load()
				r.Advance(3 * time.Hour)
				require.Equal(t, fired, c.fired.Load())
				require.Equal(t, uses, c.uses.Load())
			})
		})
	}
}

// Law T1: a mock that is moved while the operator sets its alarm must not lose the alarm
// (archived clock.Mock: a Reset between the choice of a timer and its tick is undone by
// the tick). The test does not run in a bubble, because it is about the race.
func TestMockThatMovesAllTheTime(t *testing.T) {
	mock := clock.NewMock()
	fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		if asyncop.AttemptFromContext(ctx) < 4 {
			return optest.ErrBroken
		}
		result.Complete(in)
		return nil
	})
	s := strategies.FixedDelay[int](9, 3*time.Millisecond).RetryIfException(predicates.HasException)
	op := asyncop.UnorderedWaitWithRetry(fn, time.Hour, 8, s, asyncop.WithClock(mock), asyncop.WithDrainRetries())
	go func() {
		for i := range 50 {
			op.In() <- i
		}
		close(op.In())
	}()
	n := 0
	for done := false; !done; {
		select {
		case _, ok := <-op.Out():
			if ok {
				n++
			}
			done = !ok
		default:
			mock.Add(time.Millisecond)
		}
	}
	require.NoError(t, op.Wait())
	require.Equal(t, 50, n)
}
